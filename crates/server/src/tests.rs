//! The command table, and whole conversations with an in-process node.
