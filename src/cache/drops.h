// Drops of images by namespace and age, over turns: each walks the records that there are when
// it begins, so that whatever was there then is out of sight at its end. Owned by the core;
// single-threaded; bounded work a turn, limits::kControlsWaiting drops until they are taken. Nothing
// of a namespace that goes is written to the tier from begin() until it is taken, also while others
// are before it: the tier has forgotten it. Never touches what an engine is saving.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "base/time.h"
#include "cache/core.h"
#include "cache/images.h"
#include "cache/loads.h"
#include "cache/namespaces.h"

namespace orbitkv::cache {

class Drops {
 public:
  struct Parts {
    Images& images;
    Namespaces& namespaces;
    Loads& loads;
  };
  explicit Drops(const Parts& parts) : p_(parts) {}
  ~Drops();

  // What is on its way of a namespace that goes whole does not arrive. The caller knows the bound.
  DropId begin(const DropWhat& what, DropRun run, TimePoint now);
  // True: there is more to do at once.
  bool turn(TimePoint now);
  // Told once. nullopt: it goes on.
  std::optional<std::vector<NamespaceBlocks>> take(DropId id);

 private:
  struct Drop {
    DropId id;
    DropRun run = DropRun::kCount;
    Images::Filter filter;
    Images::Tally tally;
    std::vector<NamespaceIndex> chosen;  // used until their names are told
    std::uint32_t next = 0, end = 0;     // records
    bool whole() const { return run == DropRun::kDrop && filter.unused.ns == 0; }
    bool over() const { return next == end; }
  };
  std::vector<NamespaceBlocks> told(const Drop& drop) const;
  void let_go(const Drop& drop);

  Parts p_;
  std::deque<Drop> drops_;  // in the order of coming
  std::uint64_t last_id_ = 0;
};

}  // namespace orbitkv::cache
