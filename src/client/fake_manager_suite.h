// The Manager's end of one attachment, driven by hand from a test's thread: says to a
// client what no honest Manager says.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <thread>

#include "client/attachment.h"
#include "mem/slab.h"
#include "orbitkv/client.h"
#include "shm/bootstrap.h"
#include "shm/channel.h"
#include "wire/lifecycle.h"

namespace orbitkv::client {

// One layer of eight blocks of 512 bytes.
inline Registration one_layer(std::span<std::byte> pages) {
  Registration registration;
  registration.instance.bytes.fill(std::byte{1});
  registration.name_space = "test";
  registration.num_blocks = 8;
  registration.block_tokens = 16;
  registration.groups = {orbitkv::client::Group{}};
  Layer layer;
  layer.name = "only";
  layer.base = pages.data();
  layer.bytes = pages.size();
  layer.block_stride = layer.row_bytes = 512;
  registration.layers = {layer};
  return registration;
}

class FakeManager {
 public:
  static constexpr SessionId kSession{3};
  static constexpr Epoch kEpoch{77};
  static constexpr std::uint64_t kSlabBytes = 1 << 20;

  FakeManager() {
    char path[] = "/tmp/okv-fake-XXXXXX";
    directory_ = ::mkdtemp(path);
    listener_ = std::make_unique<shm::Listener>(std::move(*shm::Listener::open(socket())));
  }
  ~FakeManager() {
    listener_.reset();
    ::unlink((socket() + ".lock").c_str());
    ::rmdir((directory_ + "/s").c_str());
    ::rmdir(directory_.c_str());
  }
  std::string socket() const { return directory_ + "/s/m.sock"; }

  // Attaches a client to this end.
  std::unique_ptr<Attachment> attach(SlabUser* slabs = nullptr) {
    std::thread server([this] { greet(); });
    auto opened = Attachment::open({socket(), "test", 5000, 64, slabs});
    server.join();
    EXPECT_TRUE(opened.ok());
    if (!opened.ok()) return nullptr;
    (*opened)->set_ready();
    return std::move(*opened);
  }

  shm::ManagerChannel& channel() { return *channel_; }
  shm::Socket& peer() { return *peer_; }

  // A slab that the client maps at once.
  void offer(Attachment& link, SlabId id) {
    auto memory = mem::make_slab_memory(id, ByteCount(kSlabBytes), mem::PageSource::kShared);
    ASSERT_TRUE(memory.ok());
    slab_ = static_cast<std::byte*>(
        ::mmap(nullptr, kSlabBytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory->get(), 0));
    shm::Message message;
    wire::encode(wire::SlabOffer{1, {{id, ByteCount(kSlabBytes), false}}}, message.frame);
    message.fds.push_back(std::move(*memory));
    ASSERT_TRUE(link.map_offer(message).ok());
  }
  std::byte* slab() { return slab_; }

  // Reserved → Preparing → Granted with this plan frame.
  void grant(RecordRef ref, const model::Plan& plan, shm::GrantFields fields = {}) {
    wire::Buffer frame;
    wire::encode(plan, frame);
    if (fields == shm::GrantFields{})
      fields = {0, static_cast<std::uint32_t>(frame.size()), 64 * 1024, 64 * 1024};
    channel_->write_bank(0, frame);
    channel_->write_grant(ref.record, fields);
    channel_->exchange(ref.record, {ref.operation, shm::RecordState::kReserved},
                       {ref.operation, shm::RecordState::kPreparing});
    channel_->exchange(ref.record, {ref.operation, shm::RecordState::kPreparing},
                       {ref.operation, shm::RecordState::kGranted});
  }
  // The same for one of several grants: each has a place of its own in the bank.
  void grant_at(std::uint32_t place, RecordRef ref, const model::Plan& plan) {
    constexpr std::uint32_t kPlace = 4096, kResults = 512 * 1024;
    wire::Buffer frame;
    wire::encode(plan, frame);
    channel_->write_bank(place * kPlace, frame);
    channel_->write_grant(ref.record, {place * kPlace, static_cast<std::uint32_t>(frame.size()),
                                       kResults + place * kPlace, kPlace});
    channel_->exchange(ref.record, {ref.operation, shm::RecordState::kReserved},
                       {ref.operation, shm::RecordState::kPreparing});
    channel_->exchange(ref.record, {ref.operation, shm::RecordState::kPreparing},
                       {ref.operation, shm::RecordState::kGranted});
  }
  // A save with nothing to copy.
  void reap(RecordRef ref, std::uint32_t dropped) {
    channel_->write_grant(ref.record, {0, 0, 0, 0, dropped});
    channel_->exchange(ref.record, {ref.operation, shm::RecordState::kReserved},
                       {ref.operation, shm::RecordState::kPreparing});
    channel_->exchange(ref.record, {ref.operation, shm::RecordState::kPreparing},
                       {ref.operation, shm::RecordState::kReaped});
  }
  shm::RecordState state(RecordRef ref) const { return shm::unpack(channel_->load_word(ref.record))->state; }

 private:
  void greet() {
    std::optional<shm::Socket> socket;
    while (!socket) socket = std::move(*listener_->accept());
    peer_.emplace(std::move(*socket));
    ASSERT_TRUE(peer_->receive_within(5000).ok());
    auto memory = shm::SessionMemory::create(kSession, kEpoch);
    auto bell = shm::make_bell();
    ASSERT_TRUE(memory.ok() && bell.ok());
    wire::Buffer reply;
    wire::encode(wire::HelloReply{kSession, kEpoch, Incarnation(5), shm::SessionLayout::kBytes, "fake"},
                 reply);
    const int fds[] = {memory->fd(), bell->get()};
    ASSERT_TRUE(peer_->send(reply, fds).ok());
    channel_ = std::make_unique<shm::ManagerChannel>(std::move(*memory), std::move(*bell));
  }

  std::string directory_;
  std::unique_ptr<shm::Listener> listener_;
  std::optional<shm::Socket> peer_;
  std::unique_ptr<shm::ManagerChannel> channel_;
  std::byte* slab_ = nullptr;
};

}  // namespace orbitkv::client
