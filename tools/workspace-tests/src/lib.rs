//! Holds no code. `tests/` reads the workspace as text and checks what no compiler checks: names, words, links,
//! dependencies.
