#include "cache/budgets.h"

#include <algorithm>

#include "base/check.h"

namespace orbitkv::cache {

namespace {

constexpr std::uint64_t kSpeculativeShare = 4;  // a quarter

ByteCount share(ByteCount limit, Use use) {
  return use == Use::kSpeculative ? ByteCount(limit.value / kSpeculativeShare) : limit;
}

bool fits(ByteCount used, ByteCount bytes, ByteCount limit) {
  return used <= limit && bytes <= limit - used;
}

}  // namespace

// ---- accounts ----

AccountIndex Budgets::open() {
  if (free_accounts_.empty()) {
    free_accounts_.push_back(static_cast<std::uint32_t>(accounts_.size()));
    accounts_.emplace_back();
  }
  const AccountIndex account(free_accounts_.back());
  free_accounts_.pop_back();
  accounts_[account.value] = Account{};
  accounts_[account.value].open = true;
  return account;
}

void Budgets::close(AccountIndex account) {
  ORBITKV_CHECK(accounts_[account.value].open, "an account is closed twice");
  accounts_[account.value].open = false;
  free_if_empty(account);
}

void Budgets::free_if_empty(AccountIndex account) {
  const Account& a = accounts_[account.value];
  if (a.open || a.charges > 0 || a.drains > 0) return;
  ORBITKV_CHECK(a.used == ByteCount(0), "an account without charges holds bytes");
  free_accounts_.push_back(account.value);
}

void Budgets::add(AccountIndex account, ByteCount bytes, Use use) {
  Account& a = accounts_[account.value];
  a.used += bytes;
  used_ += bytes;
  peak_ = std::max(peak_, used_);
  if (use != Use::kSpeculative) return;
  a.speculative += bytes;
  speculative_ += bytes;
}

void Budgets::give(AccountIndex account, ByteCount bytes, Use use) {
  Account& a = accounts_[account.value];
  ORBITKV_CHECK(a.used >= bytes && used_ >= bytes, "more comes back than was charged");
  a.used -= bytes;
  used_ -= bytes;
  ++returns_;
  if (use != Use::kSpeculative) return;
  a.speculative -= bytes;
  speculative_ -= bytes;
}

// ---- charges ----

ByteCount Budgets::most(Use use) const {
  return share(config_.instance, use);
}

Full Budgets::full(AccountIndex account, ByteCount bytes, Use use) const {
  const Account& a = accounts_[account.value];
  const bool ahead = use == Use::kSpeculative;
  if (!fits(a.used, bytes, config_.instance)) return Full::kInstance;
  if (ahead && !fits(a.speculative, bytes, share(config_.instance, use))) return Full::kInstance;
  if (!fits(used_, bytes, config_.total)) return Full::kTotal;
  if (ahead && !fits(speculative_, bytes, share(config_.total, use))) return Full::kTotal;
  return Full::kNothing;
}

ByteCount Budgets::room(AccountIndex account, Use use) const {
  const auto left = [](ByteCount used, ByteCount limit) {
    return used < limit ? limit - used : ByteCount(0);
  };
  const Account& a = accounts_[account.value];
  ByteCount room = std::min(left(a.used, config_.instance), left(used_, config_.total));
  if (use == Use::kForeground) return room;
  room = std::min(room, left(a.speculative, share(config_.instance, use)));
  return std::min(room, left(speculative_, share(config_.total, use)));
}

ChargeIndex Budgets::enter(const Charge& charge) {
  if (free_charges_.empty()) {
    free_charges_.push_back(static_cast<std::uint32_t>(charges_.size()));
    charges_.emplace_back();
  }
  const ChargeIndex index(free_charges_.back());
  free_charges_.pop_back();
  charges_[index.value] = charge;
  ++accounts_[charge.account.value].charges;
  return index;
}

ChargeIndex Budgets::take(AccountIndex account, ByteCount bytes, Use use) {
  ORBITKV_CHECK(full(account, bytes, use) == Full::kNothing, "a charge beyond its limit");
  add(account, bytes, use);
  return enter({account, bytes, 1, use});
}

void Budgets::hold(ChargeIndex charge) {
  ORBITKV_CHECK(charges_[charge.value].holds > 0, "hold of a charge that was returned");
  ++charges_[charge.value].holds;
}

void Budgets::drop(ChargeIndex charge) {
  Charge& c = charges_[charge.value];
  ORBITKV_CHECK(c.holds > 0, "drop of a charge that was returned");
  if (--c.holds > 0) return;
  --accounts_[c.account.value].charges;
  give(c.account, c.bytes, c.use);
  free_if_empty(c.account);
  free_charges_.push_back(charge.value);
}

void Budgets::shrink(ChargeIndex charge, ByteCount to) {
  Charge& c = charges_[charge.value];
  ORBITKV_CHECK(c.holds > 0 && to <= c.bytes, "a charge only becomes smaller");
  if (to == c.bytes) return;
  give(c.account, c.bytes - to, c.use);
  c.bytes = to;
}

ChargeIndex Budgets::split(ChargeIndex charge, ByteCount keeps) {
  const Charge whole = charges_[charge.value];
  ORBITKV_CHECK(whole.holds > 0 && keeps <= whole.bytes, "a part of a charge that exceeds it");
  charges_[charge.value].bytes = keeps;
  return enter({whole.account, whole.bytes - keeps, 1, whole.use});
}

void Budgets::promote(ChargeIndex charge) {
  Charge& c = charges_[charge.value];
  ORBITKV_CHECK(c.holds > 0, "promotion of a charge that was returned");
  if (c.use == Use::kForeground) return;
  c.use = Use::kForeground;
  accounts_[c.account.value].speculative -= c.bytes;
  speculative_ -= c.bytes;
}

// ---- what goes on without a charge ----

void Budgets::drain(AccountIndex account, ByteCount bytes) {
  ++accounts_[account.value].drains;
  draining_ += bytes;
  add(account, bytes, Use::kForeground);
}

void Budgets::drained(AccountIndex account, ByteCount bytes) {
  ORBITKV_CHECK(accounts_[account.value].drains > 0, "a read ends twice");
  --accounts_[account.value].drains;
  draining_ -= bytes;
  give(account, bytes, Use::kForeground);
  free_if_empty(account);
}

}  // namespace orbitkv::cache
