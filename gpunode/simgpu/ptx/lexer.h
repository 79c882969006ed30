// Splits PTX text into tokens.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace olpager::simgpu::ptx {

enum class TokenKind : std::uint8_t {
  kWord,       ///< identifier, register or opcode with its modifiers: `ld.global.v4.f32`, `%tid.x`,
               ///< `$L__BB0_2`
  kDirective,  ///< one dotted component that starts a word: `.reg`, `.b32`
  kInteger,
  kFloat32,  ///< 0fXXXXXXXX: bits in `value`
  kFloat64,  ///< 0dXXXXXXXXXXXXXXXX or a decimal: bits in `value`
  kString,   ///< text without its quotes
  kPunct,    ///< one character
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  char punct = 0;
  std::uint32_t line = 0;
  std::uint64_t value = 0;
  std::string_view text;  ///< points into the source text

  bool is(char c) const { return kind == TokenKind::kPunct && punct == c; }
  bool is(std::string_view word) const {
    return (kind == TokenKind::kWord || kind == TokenKind::kDirective) && text == word;
  }
};

/// The tokens of the text, with a kEnd at its end. Error: "LINE: what".
Result<std::vector<Token>> tokenize(std::string_view text);

}  // namespace olpager::simgpu::ptx
