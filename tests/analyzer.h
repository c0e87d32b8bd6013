// For tests/lint.sh only: tells the static analyzer, which sees one file at a time, that fail() returns
// -1. Without it every `if (check(...) != 0) return -1;` looks as if it could go on after an error.
#define fail(...) (fail(__VA_ARGS__), -1)
