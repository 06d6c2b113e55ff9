//! Every limit that more than one floor must agree on, in one place.

/// Longest document key in bytes, without collection prefix.
pub const MAX_KEY_BYTES: usize = 250;
/// Longest key in a named collection, without its prefix (the original leaves five bytes for the prefix).
pub const MAX_COLLECTION_KEY_BYTES: usize = 246;
/// Longest key with its collection prefix.
pub const MAX_PREFIXED_KEY_BYTES: usize = 251;
/// Longest key that is stored: that of a prepare, which has one more prefix.
pub const MAX_STORED_KEY_BYTES: usize = MAX_PREFIXED_KEY_BYTES + 1;
/// Largest document value in bytes, inflated, system xattrs included in their own allowance.
pub const MAX_VALUE_BYTES: usize = 20 << 20;
/// Largest total of a document's system xattrs in bytes, on top of [`MAX_VALUE_BYTES`].
pub const MAX_SYSTEM_XATTR_BYTES: usize = 1 << 20;
/// Largest body of a request frame in bytes.
pub const MAX_FRAME_BODY_BYTES: usize = 30 << 20;
/// Largest body of a request frame before a client has authenticated: with its header 16 KiB.
pub const MAX_UNAUTHENTICATED_BODY_BYTES: usize = (16 << 10) - 24;
/// vBuckets in a bucket unless configured otherwise.
pub const DEFAULT_VBUCKETS: u16 = 1024;
