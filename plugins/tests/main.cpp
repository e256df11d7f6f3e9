#include "check.h"

int main() {
    for (check::Test const& test : check::tests()) {
        int const before = check::failures();
        test.body();
        std::cout << (check::failures() == before ? "ok      " : "FAILED  ") << test.name << '\n';
    }
    std::cout << check::tests().size() << " tests, " << check::failures() << " failures\n";
    return check::failures() == 0 ? 0 : 1;
}
