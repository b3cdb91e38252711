// What the test programs share: checks that say where they failed, and a word with the Python test.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>

#define CHECK(condition)                                                        \
  do {                                                                          \
    if (!(condition)) {                                                         \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                             \
    }                                                                           \
  } while (false)

#define CHECK_EQUAL(got, wanted)                                                      \
  do {                                                                                \
    const auto got_ = (got);                                                          \
    const decltype(got_) wanted_ = (wanted);                                          \
    if (!(got_ == wanted_)) {                                                         \
      std::cerr << __FILE__ << ":" << __LINE__ << ": " << #got << ": got " << got_    \
                << ", expected " << wanted_ << std::endl;                             \
      std::exit(1);                                                                   \
    }                                                                                 \
  } while (false)

/// Check that an expression throws this error with this code.
#define CHECK_THROWS(expression, Type, wanted_code)                   \
  do {                                                                \
    std::string code_ = "nothing was thrown";                         \
    try {                                                             \
      expression;                                                     \
    } catch (const Type& error) {                                     \
      code_ = error.code();                                           \
    } catch (const std::exception& error) {                           \
      code_ = std::string("another error: ") + error.what();          \
    }                                                                 \
    CHECK_EQUAL(code_, wanted_code);                                  \
  } while (false)

/// Tell the Python test something and wait for its answer.
inline void tell_and_wait(const std::string& word) {
  std::cout << word << std::endl;
  std::string answer;
  CHECK(std::getline(std::cin, answer));
}
