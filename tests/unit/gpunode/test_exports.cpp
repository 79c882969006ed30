// Descriptors that go from one worker to another. Both are in this process: what they say goes over
// a socket all the same.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <vector>

#include "gpunode/worker/export_wire.h"
#include "gpunode/worker/exports.h"
#include "tests/catch.h"

namespace {

using namespace olpager;
using forward::ExportToken;
using gpunode::Exports;

// The server's thread serves for as long as the process lives.
Exports& worker(uint8_t group) {
  static auto* const all = new std::vector<Exports*>;
  all->push_back(new Exports);
  transport::Secret secret{};
  secret[0] = group;
  all->back()->configure(secret);
  return *all->back();
}

// A pipe with a byte in it.
base::UniqueFd something(char byte) {
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
  REQUIRE(write(ends[1], &byte, 1) == 1);
  close(ends[1]);
  return base::UniqueFd(ends[0]);
}

char inIt(const base::UniqueFd& descriptor) {
  char byte = 0;
  return read(descriptor.get(), &byte, 1) == 1 ? byte : '-';
}

base::UniqueFd connected(const ExportToken& token) {
  base::UniqueFd peer(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address;
  const socklen_t length = gpunode::exportAddress(token.process, token.socket, address);
  REQUIRE(connect(peer.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0);
  return peer;
}

}  // namespace

TEST_CASE("what is exported goes to who has the token, here and in other workers of the key",
          "[exports]") {
  Exports &giver = worker(1), &taker = worker(1);
  ExportToken first, second;
  REQUIRE(giver.add(something('a'), &first) == CUDA_SUCCESS);
  REQUIRE(giver.add(something('b'), &second) == CUDA_SUCCESS);
  CHECK(first.number != second.number);
  base::UniqueFd taken;
  REQUIRE(taker.take(second, &taken) == CUDA_SUCCESS);
  CHECK(inIt(taken) == 'b');
  REQUIRE(giver.take(first, &taken) == CUDA_SUCCESS);
  CHECK(inIt(taken) == 'a');
  giver.remove(first.number);
  giver.remove(first.number);
  CHECK(giver.size() == 1);
  CHECK(taker.take(first, &taken) == CUDA_ERROR_INVALID_VALUE);
  CHECK(giver.take(first, &taken) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("a token that was changed names nothing", "[exports]") {
  Exports &giver = worker(1), &taker = worker(1);
  ExportToken token;
  REQUIRE(giver.add(something('a'), &token) == CUDA_SUCCESS);
  for (size_t at = 0; at < sizeof token; ++at) {
    ExportToken changed = token;
    reinterpret_cast<unsigned char*>(&changed)[at] ^= 1;
    base::UniqueFd taken;
    CHECK(giver.take(changed, &taken) == CUDA_ERROR_INVALID_VALUE);
    CHECK(taker.take(changed, &taken) == CUDA_ERROR_INVALID_VALUE);
    CHECK(!taken);
  }
}

TEST_CASE("workers of another key have nothing of it, nor has who talks nonsense", "[exports]") {
  Exports &giver = worker(1), &stranger = worker(2), &taker = worker(1);
  ExportToken token;
  REQUIRE(giver.add(something('a'), &token) == CUDA_SUCCESS);
  base::UniqueFd taken;
  CHECK(stranger.take(token, &taken) == CUDA_ERROR_INVALID_VALUE);
  {
    const base::UniqueFd silent = connected(token);  // and gone
  }
  const base::UniqueFd odd = connected(token);
  const char nonsense[200] = "nonsense";
  CHECK(send(odd.get(), nonsense, sizeof nonsense, MSG_NOSIGNAL) == sizeof nonsense);
  // The answer to one is no proof for the next.
  const base::UniqueFd again = connected(token);
  gpunode::ExportHello hello;
  REQUIRE(recv(again.get(), &hello, sizeof hello, 0) == sizeof hello);
  transport::Secret wrong{};
  wrong[0] = 2;
  gpunode::ExportRequest request;
  request.number = token.number;
  request.proof = gpunode::exportProof(wrong, token, hello.challenge, false);
  REQUIRE(send(again.get(), &request, sizeof request, 0) == sizeof request);
  gpunode::ExportReply reply;
  REQUIRE(recv(again.get(), &reply, sizeof reply, 0) == sizeof reply);
  CHECK(reply.status == gpunode::ExportStatus::kNotAllowed);
  REQUIRE(taker.take(token, &taken) == CUDA_SUCCESS);
  CHECK(inIt(taken) == 'a');
}
