// Fields of a JSON document that somebody else may have written.
#pragma once

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

namespace kvartet {

// Reads fields and remembers the first that is not what it should be.
class JsonFields {
 public:
  bool ok() const { return missing_.empty(); }
  const std::string& missing() const { return missing_; }
  void miss(const char* key) {
    if (missing_.empty()) missing_ = key;
  }

  double number(const nlohmann::json& object, const char* key) {
    const auto found = object.is_object() ? object.find(key) : object.end();
    if (object.is_object() && found != object.end() && found->is_number()) {
      const auto x = found->get<double>();
      if (std::abs(x) < kMostFigure) return x;
    }
    miss(key);
    return 0;
  }
  int whole(const nlohmann::json& object, const char* key) {
    const double x = number(object, key);
    if (x >= 0 && x == std::floor(x)) return static_cast<int>(x);
    miss(key);
    return 0;
  }
  const nlohmann::json& part(const nlohmann::json& object, const char* key) {
    static const nlohmann::json kNothing;
    const auto found = object.is_object() ? object.find(key) : object.end();
    if (object.is_object() && found != object.end()) return *found;
    miss(key);
    return kNothing;
  }
  std::string word(const nlohmann::json& object, const char* key) {
    const nlohmann::json& found = part(object, key);
    if (found.is_string()) return found.get<std::string>();
    miss(key);
    return {};
  }

 private:
  static constexpr double kMostFigure = 1e9;  // no share, count, rate or relative error is larger
  std::string missing_;
};

}  // namespace kvartet
