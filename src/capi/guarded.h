// What every function of the C interface does around its call: a NULL client, an exception and a
// failing outcome become an action and its text. Nothing is thrown across the interface.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <new>

#include "capi/convert.h"

// Ended operations that the caller's array had no room for wait here.
struct orbitkv_client {
  std::unique_ptr<orbitkv::client::Client> client;
  const pid_t owner = getpid();
  std::mutex mutex;
  std::deque<orbitkv::client::OperationHandle> waiting;

  // A child of the owner may have been forked while another thread held the mutex.
  bool here() const { return owner == getpid(); }
};

namespace orbitkv::capi {

inline orbitkv_action answer(const Outcome& outcome, orbitkv_error* error) {
  const auto action = static_cast<orbitkv_action>(outcome.action);
  if (error == nullptr) return action;
  error->action = action;
  copy_text(outcome.message, error->message);
  return action;
}

inline orbitkv_action answer_without_memory(orbitkv_error* error) noexcept {
  if (error) *error = {ORBITKV_RETRY, "out of memory"};
  return ORBITKV_RETRY;
}

template <class F>
orbitkv_action guarded(orbitkv_error* error, F call) noexcept {
  try {
    return answer(call(), error);
  } catch (const std::bad_alloc&) {
    return answer_without_memory(error);
  } catch (const std::exception& unexpected) {
    if (error) {
      error->action = ORBITKV_BUG;
      copy_text(unexpected.what(), error->message);
    }
    return ORBITKV_BUG;
  }
}

template <class F>
orbitkv_action with_client(orbitkv_client* client, orbitkv_error* error, F call) noexcept {
  return guarded(error, [&] { return client ? call(*client->client) : reject("client is NULL"); });
}

}  // namespace orbitkv::capi
