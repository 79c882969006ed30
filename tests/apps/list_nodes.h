// A list whose nodes lie wherever the program puts them, and kernels that walk and relink it.
#pragma once

#include <cstdint>

namespace apps {

struct Node {
  Node* next;
  uint32_t value;
  uint32_t visits;
};

/// Counts a visit of each node. `sum` depends on the order of the values.
static __global__ void walk(Node* const* head, unsigned long long* sum, uint32_t* length) {
  unsigned long long total = 0;
  uint32_t count = 0;
  for (Node* node = *head; node != nullptr; node = node->next) {
    total = total * 31 + node->value;
    ++node->visits;
    ++count;
  }
  *sum = total;
  *length = count;
}

static __global__ void reverse(Node** head) {
  Node* done = nullptr;
  for (Node* node = *head; node != nullptr;) {
    Node* const next = node->next;
    node->next = done;
    done = node;
    node = next;
  }
  *head = done;
}

}  // namespace apps
