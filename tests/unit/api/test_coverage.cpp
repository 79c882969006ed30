// The coverage table names every function that the recorded driver exports.
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "tests/catch.h"

TEST_CASE("the coverage table is complete") {
  std::ifstream table(COVERAGE_TABLE);
  std::stringstream text;
  text << table.rdbuf();
  std::set<std::string> words;
  std::string word;
  for (const char c : text.str()) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_') {
      word += c;
    } else {
      words.insert(word);
      word.clear();
    }
  }
  std::ifstream names(DATA_FOLDER "/libcuda_580_exports.txt");
  int count = 0;
  for (std::string name; names >> name; ++count) {
    INFO(name);
    CHECK(words.count(name) == 1);
  }
  CHECK(count == 707);
}
