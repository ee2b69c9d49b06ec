//! Queue pair states, the kernel's transition tables, and a validator that explains itself.
