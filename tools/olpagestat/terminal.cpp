#include "tools/olpagestat/terminal.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace olpager::tools {
namespace {

constexpr int kSignals[] = {SIGWINCH, SIGINT, SIGTERM, SIGHUP, SIGTSTP};
volatile std::sig_atomic_t g_resized = 0, g_ended = 0, g_stopped = 0;

void onSignal(int signal) {
  if (signal == SIGWINCH) {
    g_resized = 1;
  } else if (signal == SIGTSTP) {
    g_stopped = 1;
  } else {
    g_ended = 1;
  }
}

const char* codeOf(Style style, bool colour) {
  if (!colour) {
    switch (style) {
      case Style::kTitle:
        return "1";
      case Style::kHead:
      case Style::kChosen:
        return "7";
      default:
        return "0";
    }
  }
  switch (style) {
    case Style::kPlain:
      return "0";
    case Style::kTitle:
      return "1";
    case Style::kHead:
      return "7";
    case Style::kChosen:
      return "1;7";
    case Style::kDim:
      return "2";
    case Style::kVram:
      return "30;42";
    case Style::kInPlace:
      return "30;46";
    case Style::kHost:
      return "37;44";
    case Style::kRemote:
      return "37;45";
    case Style::kIn:
      return "30;43";
    case Style::kOut:
      return "37;41";
    case Style::kEmpty:
      return "2";
    case Style::kTraffic:
      return "36";
    case Style::kStalls:
      return "31";
    case Style::kHits:
      return "32";
  }
  return "0";
}

}  // namespace

namespace {

// A byte that continues a character of UTF-8.
bool continues(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0x80; }

// The first `columns` characters.
std::string_view cut(std::string_view text, size_t columns) {
  size_t end = 0;
  while (end < text.size()) {
    if (!continues(text[end]) && columns-- == 0) break;
    end++;
  }
  return text.substr(0, end);
}

}  // namespace

size_t columnsOf(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char byte) { return !continues(byte); }));
}

Line beside(const Line& left, const Line& right, size_t columns) {
  Line both;
  size_t room = columns;
  for (const auto& piece : left.pieces) {
    const std::string part(cut(piece.text, room));
    room -= columnsOf(part);
    both.add(part, piece.style);
  }
  if (!right.pieces.empty()) both.add(std::string(room, ' '));
  for (const auto& piece : right.pieces) both.pieces.push_back(piece);
  return both;
}

std::string render(const Line& line, unsigned width, bool colour) {
  std::string text;
  size_t left = width;
  for (const auto& piece : line.pieces) {
    if (left == 0) break;
    const std::string part(cut(piece.text, left));
    left -= columnsOf(part);
    const char* code = codeOf(piece.style, colour);
    if (std::strcmp(code, "0") == 0) {
      text += part;
    } else {
      text += "\x1b[";
      text += code;
      text += 'm';
      text += part;
      text += "\x1b[0m";
    }
  }
  return text;
}

bool Terminal::usable() {
  const char* kind = std::getenv("TERM");
  return isatty(STDOUT_FILENO) != 0 && isatty(STDIN_FILENO) != 0 && kind != nullptr &&
         *kind != '\0' && std::strcmp(kind, "dumb") != 0;
}

bool Terminal::unicode() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    // The first one that is set decides, as for the C library.
    return strcasestr(value, "UTF-8") != nullptr || strcasestr(value, "utf8") != nullptr;
  }
  return false;
}

Terminal::Terminal() {
  const char* none = std::getenv("NO_COLOR");
  colour_ = none == nullptr || *none == '\0';
  g_resized = 0;
  g_ended = 0;
  g_stopped = 0;
  tcgetattr(STDIN_FILENO, &before_);
  struct sigaction action {};
  action.sa_handler = onSignal;
  for (size_t i = 0; i < std::size(kSignals); i++) sigaction(kSignals[i], &action, &handlers_[i]);
  enter();
}

Terminal::~Terminal() {
  leave();
  for (size_t i = 0; i < std::size(kSignals); i++) sigaction(kSignals[i], &handlers_[i], nullptr);
}

void Terminal::enter() {
  termios raw = before_;
  raw.c_lflag &=
      ~static_cast<tcflag_t>(ICANON | ECHO);  // signals stay: ^C and ^Z do what they do everywhere
  raw.c_cc[VMIN] = 0;
  raw.c_cc[VTIME] = 0;
  tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
  put("\x1b[?1049h\x1b[?25l\x1b[0m\x1b[2J");
  shown_.clear();
  measure();
}

void Terminal::leave() {
  put("\x1b[0m\x1b[?25h\x1b[?1049l");
  tcsetattr(STDIN_FILENO, TCSADRAIN, &before_);
}

void Terminal::measure() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col != 0 && size.ws_row != 0) {
    width_ = size.ws_col;
    height_ = size.ws_row;
  }
}

void Terminal::put(const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t wrote = write(STDOUT_FILENO, text.data() + done, text.size() - done);
    if (wrote < 0 && errno != EINTR && errno != EAGAIN) {
      g_ended = 1;
      return;
    }
    if (wrote < 0 && errno == EAGAIN) {
      pollfd ready{STDOUT_FILENO, POLLOUT, 0};
      poll(&ready, 1, 100);
      if (g_ended != 0) return;
    }
    if (wrote > 0) done += static_cast<size_t>(wrote);
  }
}

void Terminal::draw(const std::vector<Line>& lines) {
  std::string text;
  const size_t count = std::max<size_t>(shown_.size(), height_);
  shown_.resize(count);
  for (size_t row = 0; row < height_; row++) {
    std::string now = row < lines.size() ? render(lines[row], width_, colour_) : std::string();
    if (now == shown_[row]) continue;
    text += "\x1b[" + std::to_string(row + 1) + ";1H" + now + "\x1b[K";
    shown_[row] = std::move(now);
  }
  if (!text.empty()) put(text);
}

Key Terminal::wait(int milliseconds, char& character) {
  if (g_ended != 0) return Key::kEnd;
  if (g_stopped != 0) {
    leave();
    g_stopped = 0;
    raise(SIGSTOP);  // until somebody continues it
    enter();
    return Key::kResize;
  }
  if (g_resized != 0) {
    g_resized = 0;
    measure();
    shown_.clear();
    put("\x1b[0m\x1b[2J");
    return Key::kResize;
  }
  pollfd input{STDIN_FILENO, POLLIN, 0};
  if (poll(&input, 1, milliseconds) <= 0) return g_ended != 0 ? Key::kEnd : Key::kNone;
  char byte = 0;
  if (read(STDIN_FILENO, &byte, 1) != 1)
    return (input.revents & (POLLHUP | POLLERR)) != 0 ? Key::kEnd : Key::kNone;
  if (byte == '\n' || byte == '\r') return Key::kEnter;
  if (byte != '\x1b') {
    character = byte;
    return Key::kCharacter;
  }
  // An arrow is ESC [ A or ESC O A; what follows at once belongs to it.
  char rest[2] = {};
  size_t have = 0;
  while (have < 2 && poll(&input, 1, 25) > 0 && read(STDIN_FILENO, rest + have, 1) == 1) have++;
  if (have == 0) return Key::kEscape;
  if (have == 2 && (rest[0] == '[' || rest[0] == 'O')) {
    if (rest[1] == 'A') return Key::kUp;
    if (rest[1] == 'B') return Key::kDown;
  }
  return Key::kNone;
}

}  // namespace olpager::tools
