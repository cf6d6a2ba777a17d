// What queries may hold of memory at once: bytes of all instances together, and of one. A
// charge stands for one lease and the restores of it; what is shared counts once an owner.
// The limits are of commitments, so they may exceed memory. What is done ahead of need has a
// quarter of each limit, within it. Owned by the core; single-threaded.
// Never takes a charge that does not fit, never returns one before its last holder has let go,
// and knows nothing of what is held.
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "cache/use.h"

namespace orbitkv::cache {

using AccountIndex = Id<struct AccountIndexTag, std::uint32_t>;  // of an instance
inline constexpr AccountIndex kNoAccount{0xFFFFFFFFu};
using ChargeIndex = Id<struct ChargeIndexTag, std::uint32_t>;
inline constexpr ChargeIndex kNoCharge{0xFFFFFFFFu};

// What a charge would exceed.
enum class Full : std::uint8_t { kNothing, kInstance, kTotal };

class Budgets {
 public:
  struct Config {
    ByteCount total, instance;  // 0 < instance <= total
  };
  explicit Budgets(const Config& config) : config_(config) {}

  AccountIndex open();
  // Its instance has ended: the place is given again when nothing is charged to it.
  void close(AccountIndex account);

  // No charge above it ever fits.
  ByteCount most(Use use) const;
  Full full(AccountIndex account, ByteCount bytes, Use use) const;
  // The largest charge that fits now.
  ByteCount room(AccountIndex account, Use use) const;
  // It fits. Held once.
  ChargeIndex take(AccountIndex account, ByteCount bytes, Use use);
  void hold(ChargeIndex charge);
  // The last drop returns it.
  void drop(ChargeIndex charge);
  void shrink(ChargeIndex charge, ByteCount to);
  // The charge keeps `keeps`; the rest is one of its own, held once.
  ChargeIndex split(ChargeIndex charge, ByteCount keeps);
  // Speculation that somebody asks for now: always fits, since its share lies within the limits.
  void promote(ChargeIndex charge);
  ByteCount bytes(ChargeIndex charge) const { return charges_[charge.value].bytes; }

  // Reads into memory that go on after their charge was returned, until they end.
  void drain(AccountIndex account, ByteCount bytes);
  void drained(AccountIndex account, ByteCount bytes);

  const Config& config() const { return config_; }
  ByteCount used() const { return used_; }
  ByteCount used(AccountIndex account) const { return accounts_[account.value].used; }
  ByteCount speculative() const { return speculative_; }
  ByteCount speculative(AccountIndex account) const { return accounts_[account.value].speculative; }
  ByteCount draining() const { return draining_; }
  ByteCount peak() const { return peak_; }
  // Rises whenever bytes come free.
  std::uint64_t returns() const { return returns_; }

 private:
  struct Account {
    ByteCount used, speculative;
    std::uint32_t charges = 0, drains = 0;
    bool open = false;
  };
  struct Charge {
    AccountIndex account = kNoAccount;
    ByteCount bytes;
    std::uint32_t holds = 0;
    Use use = Use::kForeground;
  };
  ChargeIndex enter(const Charge& charge);
  void add(AccountIndex account, ByteCount bytes, Use use);
  void give(AccountIndex account, ByteCount bytes, Use use);
  void free_if_empty(AccountIndex account);

  Config config_;
  std::vector<Account> accounts_;
  std::vector<std::uint32_t> free_accounts_;
  std::vector<Charge> charges_;
  std::vector<std::uint32_t> free_charges_;
  ByteCount used_, speculative_, draining_, peak_;
  std::uint64_t returns_ = 0;
};

}  // namespace orbitkv::cache
