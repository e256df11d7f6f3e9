// A test framework in a page: TEST(name) { CHECK(x); CHECK_EQ(a, b); }, run by tests/main.cpp.
#pragma once

#include <functional>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

namespace check {

struct Test {
    char const* name;
    void (*body)();
};

inline std::vector<Test>& tests() {
    static std::vector<Test> all;
    return all;
}

inline int& failures() {
    static int count = 0;
    return count;
}

struct Registered {
    Registered(char const* name, void (*body)()) { tests().push_back({name, body}); }
};

inline void fail(char const* file, int line, std::string const& text) {
    std::cerr << file << ':' << line << ": " << text << '\n';
    ++failures();
}

template <class A, class B>
void equal(A const& a, B const& b, char const* text, char const* file, int line) {
    if (a == b) return;
    std::ostringstream message;
    message << text << "\n    is     " << a << "\n    not    " << b;
    fail(file, line, message.str());
}

}  // namespace check

#define TEST(name)                                       \
    static void name();                                  \
    static check::Registered const name##_(#name, name); \
    static void name()

#define CHECK(condition) \
    if (!(condition)) check::fail(__FILE__, __LINE__, #condition)

#define CHECK_EQ(a, b) check::equal(a, b, #a, __FILE__, __LINE__)
