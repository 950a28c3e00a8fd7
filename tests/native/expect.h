// The assertion of the unit tests in C++.
#pragma once

#include <cstdio>
#include <cstdlib>

// Ends the program with the place and the text of a condition that does not hold.
#define EXPECT(condition)                                                           \
  do {                                                                              \
    if (!(condition)) {                                                             \
      std::fprintf(stderr, "%s:%d: expected %s\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                                 \
    }                                                                               \
  } while (false)
