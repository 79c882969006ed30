// libibverbs and librdmacm, opened when the first link may want a card: programs that link this
// library need neither of them.
//
// Functions that their headers define inline (polling, posting, arming) need no symbol; all others
// go by this table.
#pragma once

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "base/format.h"
#include "base/result.h"

namespace olpager::transport::verbs {

struct Api {
#define OL_VERBS(X)           \
  X(ibv_get_device_list)      \
  X(ibv_free_device_list)     \
  X(ibv_alloc_pd)             \
  X(ibv_dealloc_pd)           \
  X(ibv_reg_mr)               \
  X(ibv_dereg_mr)             \
  X(ibv_create_comp_channel)  \
  X(ibv_destroy_comp_channel) \
  X(ibv_create_cq)            \
  X(ibv_destroy_cq)           \
  X(ibv_create_srq)           \
  X(ibv_destroy_srq)          \
  X(ibv_get_cq_event)         \
  X(ibv_ack_cq_events)        \
  X(ibv_query_device)         \
  X(ibv_query_port)           \
  X(ibv_modify_qp)            \
  X(ibv_wc_status_str)
#define OL_RDMACM(X)            \
  X(rdma_create_event_channel)  \
  X(rdma_destroy_event_channel) \
  X(rdma_create_id)             \
  X(rdma_destroy_id)            \
  X(rdma_bind_addr)             \
  X(rdma_resolve_addr)          \
  X(rdma_resolve_route)         \
  X(rdma_create_qp)             \
  X(rdma_destroy_qp)            \
  X(rdma_connect)               \
  X(rdma_listen)                \
  X(rdma_accept)                \
  X(rdma_reject)                \
  X(rdma_disconnect)            \
  X(rdma_get_cm_event)          \
  X(rdma_ack_cm_event)          \
  X(rdma_migrate_id)            \
  X(rdma_set_option)            \
  X(rdma_get_src_port)          \
  X(rdma_event_str)
#define OL_FUNCTION(name) decltype(&::name) name = nullptr;
  OL_VERBS(OL_FUNCTION)
  OL_RDMACM(OL_FUNCTION)
#undef OL_FUNCTION
  decltype(&::ibv_reg_dmabuf_mr) ibv_reg_dmabuf_mr =
      nullptr;  // rdma-core 34 and newer; null before
};

/// Null where this host has no libraries or no card, and in a process that was forked after its
/// parent had asked (what a card has mapped for the parent is not the child's): whyNot() has one
/// line.
const Api* api();
const std::string& whyNot();

/// A call of the libraries has failed, and errno says why.
inline Error failed(const char* what) {
  return Error{base::format("{}: {}", what, std::strerror(errno))};
}

}  // namespace olpager::transport::verbs
