#include "model/arch.h"

#include <array>

namespace kvartet {
namespace {

constexpr std::array<const Architecture*, 5> kTable = {&kArchLlama, &kArchQwen2, &kArchQwen3, &kArchQwen3Moe, &kArchGemma3};

}  // namespace

std::span<const Architecture* const> architectures() { return kTable; }

const Architecture* find_architecture(std::string_view name) {
  for (const Architecture* a : kTable) {
    if (a->name == name) return a;
  }
  return nullptr;
}

std::string architecture_names() {
  std::string names;
  for (const Architecture* a : kTable) {
    if (!names.empty()) names += ", ";
    names += a->name;
  }
  return names;
}

}  // namespace kvartet
