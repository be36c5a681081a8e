// How many prompts of a benchmark began with rows that were there already, for the user.
#pragma once

#include "engine/engine.h"

namespace kvartet {

// Prompts of the plan; the engine counts prefills, of which a prompt has several where a cache fails or has a limit of its own.
class SharedPrompts {
 public:
  explicit SharedPrompts(const Engine& engine) : engine_(engine) {}
  void begin();  // before a prompt is measured
  void end();    // after it
  void print_notes() const;

 private:
  const Engine& engine_;
  Engine::SharedPrefixTally before_;
  bool was_held_ = false;
  int taken_ = 0;
  int not_held_ = 0;
};

}  // namespace kvartet
