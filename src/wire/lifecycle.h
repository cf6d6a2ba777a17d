// Messages on the bootstrap socket: attach, registration, slabs, status. One frame
// is one SEQPACKET message of at most limits::kSocketFrameBytes; descriptors travel
// beside the frame (SCM_RIGHTS). Pure encode and decode; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "model/geometry.h"
#include "orbitkv/types.h"
#include "wire/messages.h"

namespace orbitkv::wire {

enum class PeerRole : std::uint8_t { kEngine = 1, kStatus = 2 };

// First message of a client. Its leading bytes (frame header, abi) never change
// between versions, so that a version mismatch can be answered in words.
struct Hello {
  std::uint16_t abi = kAbiVersion;
  PeerRole role = PeerRole::kEngine;
  std::string client;  // "orbitkv 0.1.0 (vllm worker)", <= 128 bytes; for logs
};

// With role kEngine it carries two descriptors, in this order: session memfd, eventfd
// client-to-Manager. With kStatus none.
struct HelloReply {
  SessionId session;
  Epoch epoch;
  Incarnation incarnation;
  std::uint64_t session_bytes = 0;  // size of the session memfd
  std::string server;               // "orbitkv 0.1.0"
};

struct Register {
  std::uint64_t request = 0;  // echoed in the reply
  model::RankRegistration rank;
};
struct RegisterReply {
  std::uint64_t request = 0;
  RegistrationId registration;
  std::uint64_t pool = 0;  // pool id: slab ids belong to it
};
struct Unregister {
  std::uint64_t request = 0;
  RegistrationId registration;
};
struct UnregisterReply {
  std::uint64_t request = 0;
};

// Pushed by the Manager before any grant names these slabs; one descriptor each,
// at most limits::kFdsPerMessage a message.
struct SlabOffer {
  struct Slab {
    SlabId id;
    ByteCount bytes;
    bool huge = false;
    bool kept = false;  // its memory outlives the Manager: the next one may offer it again
  };
  std::uint64_t pool = 0;
  std::vector<Slab> slabs;
};

// Pushed by the Manager: no copy may begin on the slab any more. When those that run have
// ended and the client has unmapped it, it answers SlabReleased, once.
struct SlabRetire {
  SlabId slab;
};
struct SlabReleased {
  SlabId slab;
};

struct StatusRequest {
  std::uint64_t request = 0;
};
// A command of the operator (daemon/control.h), as a JSON object; answered by a StatusReply
// with a JSON object, or by a SocketError.
struct ControlRequest {
  std::uint64_t request = 0;
  std::string json;  // <= limits::kControlBytes
};
struct StatusReply {
  std::uint64_t request = 0;
  std::string json;  // one object, docs/protocol.md
};
// Clean end: the client has drained everything it claimed, and unmapped every slab.
struct Bye {};
// Frozen across ABI versions like Hello: decodes whatever abi its frame header names,
// so that an old client can read what to upgrade.
struct SocketError {
  std::uint64_t request = 0;  // 0: the session as a whole; the socket closes after it
  Code code = Code::kBug;
  std::string text;
};

void encode(const Hello&, Buffer& out);
void encode(const HelloReply&, Buffer& out);
void encode(const Register&, Buffer& out);
void encode(const RegisterReply&, Buffer& out);
void encode(const Unregister&, Buffer& out);
void encode(const UnregisterReply&, Buffer& out);
void encode(const SlabOffer&, Buffer& out);
void encode(const SlabRetire&, Buffer& out);
void encode(const SlabReleased&, Buffer& out);
void encode(const StatusRequest&, Buffer& out);
void encode(const StatusReply&, Buffer& out);
void encode(const ControlRequest&, Buffer& out);
void encode(const Bye&, Buffer& out);
void encode(const SocketError&, Buffer& out);

// A Hello of another ABI version decodes to its version so that it can be refused
// with words; everything else needs kAbiVersion.
Result<Hello> decode_hello(std::span<const std::byte> frame);
Result<HelloReply> decode_hello_reply(std::span<const std::byte> frame);
Result<Register> decode_register(std::span<const std::byte> frame);
Result<RegisterReply> decode_register_reply(std::span<const std::byte> frame);
Result<Unregister> decode_unregister(std::span<const std::byte> frame);
Result<UnregisterReply> decode_unregister_reply(std::span<const std::byte> frame);
Result<SlabOffer> decode_slab_offer(std::span<const std::byte> frame);
Result<SlabRetire> decode_slab_retire(std::span<const std::byte> frame);
Result<SlabReleased> decode_slab_released(std::span<const std::byte> frame);
Result<StatusRequest> decode_status_request(std::span<const std::byte> frame);
Result<StatusReply> decode_status_reply(std::span<const std::byte> frame);
Result<ControlRequest> decode_control_request(std::span<const std::byte> frame);
Result<Bye> decode_bye(std::span<const std::byte> frame);
Result<SocketError> decode_socket_error(std::span<const std::byte> frame);

}  // namespace orbitkv::wire
