//! The example of docs/journal_format.md, byte by byte.
