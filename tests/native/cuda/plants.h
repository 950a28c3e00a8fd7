// The mistake that the command line plants in a program. One build serves all of them.
#pragma once

#include <cstring>

inline const char* planted = "";

inline bool plants(const char* mistake) { return std::strcmp(planted, mistake) == 0; }
