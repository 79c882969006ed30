// Texts in the page of --report besides figures, which the build puts into the program
// (page/embed.py). None of them ends an element of HTML. Thread-safety: constants. Errors: none.
#pragma once

#include <string_view>

namespace olpager::tools::page {

std::string_view uplotLicence();
std::string_view uplotScript();
std::string_view uplotStyle();
std::string_view script();  // draws the plots of the page's data
std::string_view style();

}  // namespace olpager::tools::page
