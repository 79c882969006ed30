// The terminal: its owner, its size, the keys typed, and drawing without flicker: of each picture
// only the lines that differ from the last one are sent, in one write.
//
// Thread-safety: one thread; one Terminal at a time (it handles the signals SIGWINCH, SIGINT,
// SIGTERM, SIGHUP and SIGTSTP). Errors: where standard input or output is no terminal, usable()
// says so and there is nothing to make.
#pragma once

#include <termios.h>

#include <csignal>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace olpager::tools {

enum class Style : uint8_t {
  kPlain,
  kTitle,
  kHead,
  kChosen,
  kDim,
  kVram,
  kInPlace,
  kHost,
  kRemote,
  kIn,
  kOut,
  kEmpty,
  kTraffic,
  kStalls,
  kHits
};

/// A line of text in pieces of one style each. Printable ASCII, and where the terminal takes UTF-8
/// braille: each character has one column.
struct Line {
  struct Piece {
    std::string text;
    Style style = Style::kPlain;
  };
  std::vector<Piece> pieces;
  Line& add(std::string text, Style style = Style::kPlain) {
    pieces.push_back({std::move(text), style});
    return *this;
  }
};

/// How many columns the text has: its characters.
size_t columnsOf(std::string_view text);
/// The right line `columns` to the right of where the left one begins; what is longer there is cut.
Line beside(const Line& left, const Line& right, size_t columns);

/// The characters of a line for a terminal `width` columns wide: longer text is cut. `colour`:
/// false leaves it to bold and reverse.
std::string render(const Line& line, unsigned width, bool colour);

enum class Key : uint8_t { kNone, kUp, kDown, kEnter, kEscape, kCharacter, kResize, kEnd };

class Terminal {
 public:
  static bool usable();
  /// The locale's characters are those of UTF-8.
  static bool unicode();
  Terminal();
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  unsigned width() const { return width_; }
  unsigned height() const { return height_; }
  /// At most height() lines; the rest of the screen is empty.
  void draw(const std::vector<Line>& lines);
  /// Waits that long for a key, a change of size (kResize: draw again) or the end (a signal, or the
  /// terminal went away).
  Key wait(int milliseconds, char& character);

 private:
  void enter();
  void leave();
  void measure();
  static void put(const std::string& text);

  termios before_{};
  struct sigaction handlers_[5]{};
  unsigned width_ = 80, height_ = 24;
  bool colour_ = true;
  std::vector<std::string> shown_;
};

}  // namespace olpager::tools
