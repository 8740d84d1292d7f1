//! The import rules and the size of the root part, checked by machine.
