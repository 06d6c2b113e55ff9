//! How a request went (BinaryProtocol.md, Response Status).

macro_rules! statuses {
    ($($(#[$default:meta])? $code:literal $variant:ident $name:literal [$($attr:literal)*] $text:literal,)*) => {
        /// How a request went.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum Status {
            $(#[doc = $text] $(#[$default])? $variant = $code,)*
        }

        impl Status {
            /// Every status there is, by number.
            pub const ALL: &'static [Status] = &[$(Status::$variant,)*];

            /// The status with this wire number, if there is one.
            pub const fn from_code(code: u16) -> Option<Status> {
                match code {
                    $($code => Some(Status::$variant),)*
                    _ => None,
                }
            }

            /// Its name in the error map.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Status::$variant => $name,)*
                }
            }

            /// A sentence about it.
            pub const fn text(self) -> &'static str {
                match self {
                    $(Status::$variant => $text,)*
                }
            }

            /// What the error map tells clients to do about it.
            pub const fn attributes(self) -> &'static [&'static str] {
                match self {
                    $(Status::$variant => &[$($attr),*],)*
                }
            }
        }
    };
}

impl Status {
    /// Its number on the wire.
    pub const fn code(self) -> u16 {
        self as u16
    }

    /// Whether the request did what was asked for.
    pub const fn is_success(self) -> bool {
        matches!(self, Status::Success | Status::SubdocSuccessDeleted | Status::RangeScanComplete)
    }
}

statuses! {
    #[default]
    0x0000 Success "SUCCESS" ["success"] "The request succeeded",
    0x0001 KeyEnoent "KEY_ENOENT" ["item-only"] "The document does not exist",
    0x0002 KeyEexists "KEY_EEXISTS" ["item-only"] "The document exists, or its CAS is another one",
    0x0003 E2big "E2BIG" ["invalid-input" "item-only"] "The value is too large",
    0x0004 Einval "EINVAL" ["internal" "invalid-input"] "The request is not well formed",
    0x0005 NotStored "NOT_STORED" ["internal" "item-only"] "The document could not be stored",
    0x0006 DeltaBadval "DELTA_BADVAL" ["invalid-input" "item-only"] "The document is not a number",
    0x0007 NotMyVbucket "NOT_MY_VBUCKET" ["fetch-config" "invalid-input"] "This node does not serve the vBucket",
    0x0008 NoBucket "NO_BUCKET" ["conn-state-invalidated"] "No bucket is selected on this connection",
    0x0009 Locked "LOCKED" ["item-locked" "item-only" "retry-now"] "The document is locked",
    0x000a StreamNotFound "STREAM_NOT_FOUND" ["conn-state-invalidated"] "There is no such DCP stream",
    0x000b OpaqueNoMatch "OPAQUE_NO_MATCH" ["conn-state-invalidated"] "The opaque is not the one of the DCP stream",
    0x000c WouldThrottle "EWOULD_THROTTLE" ["rate-limit" "retry-later" "temp"] "The request would be throttled",
    0x000d ConfigOnly "ECONFIG_ONLY" ["fetch-config" "retry-now"] "The bucket is known here only by its configuration",
    0x000e NotLocked "NOT_LOCKED" ["item-only"] "The document is not locked",
    0x000f CasValueInvalid "CAS_VALUE_INVALID" ["item-only"] "The CAS is not valid",
    0x001f AuthStale "AUTH_STALE" ["auth" "conn-state-invalidated"] "The authentication is no longer valid",
    0x0020 AuthError "AUTH_ERROR" ["auth" "conn-state-invalidated"] "The authentication failed",
    0x0021 AuthContinue "AUTH_CONTINUE" ["special-handling"] "The authentication needs another step",
    0x0022 Erange "ERANGE" ["invalid-input"] "A number is outside of its range",
    0x0023 Rollback "ROLLBACK" ["dcp" "special-handling"] "The client must roll back to an earlier seqno",
    0x0024 Eaccess "EACCESS" ["support"] "The user may not do this",
    0x0025 NotInitialized "NOT_INITIALIZED" ["conn-state-invalidated"] "The node is still being initialised",
    0x0026 EncryptionKeyNotAvailable "ENCRYPTION_KEY_NOT_AVAILABLE" ["special-handling"] "The encryption key is not there",
    0x0027 ChecksumMismatch "CHECKSUM_MISMATCH" ["special-handling"] "A checksum does not match",
    0x0028 ExpiryOverflow "EXPIRY_OVERFLOW" ["item-only" "no-retry" "system-constraint"] "The expiry time is out of range",
    0x0029 LockExpiryOverflow "LOCK_EXPIRY_OVERFLOW" ["item-only" "no-retry" "system-constraint"] "The lock time is out of range",
    0x0030 RateLimitedNetworkIngress "RATE_LIMITED_NETWORK_INGRESS" ["rate-limit" "retry-later" "temp"] "The rate of incoming bytes is exceeded",
    0x0031 RateLimitedNetworkEgress "RATE_LIMITED_NETWORK_EGRESS" ["rate-limit" "retry-later" "temp"] "The rate of outgoing bytes is exceeded",
    0x0032 RateLimitedMaxConnections "RATE_LIMITED_MAX_CONNECTIONS" ["conn-state-invalidated" "rate-limit"] "There are too many connections",
    0x0033 RateLimitedMaxCommands "RATE_LIMITED_MAX_COMMANDS" ["rate-limit" "retry-later" "temp"] "The rate of commands is exceeded",
    0x0034 ScopeSizeLimitExceeded "SCOPE_SIZE_LIMIT_EXCEEDED" ["item-only" "rate-limit"] "The scope holds as much as it may",
    0x0035 BucketSizeLimitExceeded "BUCKET_SIZE_LIMIT_EXCEEDED" ["item-only" "no-retry" "system-constraint"] "The bucket holds as much as it may",
    0x0036 BucketResidentRatioTooLow "BUCKET_RESIDENT_RATIO_TOO_LOW" ["item-only" "no-retry" "system-constraint"] "Too little of the bucket is in memory",
    0x0037 BucketDataSizeTooBig "BUCKET_DATA_SIZE_TOO_BIG" ["item-only" "no-retry" "system-constraint"] "The bucket's data are too large",
    0x0038 BucketDiskSpaceTooLow "BUCKET_DISK_SPACE_TOO_LOW" ["item-only" "no-retry" "system-constraint"] "There is too little space on the disk",
    0x0050 BucketPaused "BUCKET_PAUSED" ["support"] "The bucket is paused",
    0x0051 Cancelled "CANCELLED" ["item-only" "retry-now"] "The request was cancelled",
    0x0080 UnknownFrameInfo "UNKNOWN_FRAME_INFO" ["support"] "A framing extra is not known",
    0x0081 UnknownCommand "UNKNOWN_COMMAND" ["support"] "The command is not known",
    0x0082 Enomem "ENOMEM" ["retry-later" "temp"] "There is not enough memory",
    0x0083 NotSupported "NOT_SUPPORTED" ["support"] "The command is not supported",
    0x0084 Einternal "EINTERNAL" ["conn-state-invalidated" "internal"] "The server made an error",
    0x0085 Ebusy "EBUSY" ["retry-now" "temp"] "The server is busy",
    0x0086 Etmpfail "ETMPFAIL" ["retry-now" "temp"] "It does not work just now",
    0x0087 XattrEinval "XATTR_EINVAL" ["invalid-input"] "The extended attributes are not well formed",
    0x0088 UnknownCollection "UNKNOWN_COLLECTION" ["invalid-input"] "There is no such collection",
    0x0089 NoCollectionsManifest "NO_COLLECTIONS_MANIFEST" ["retry-later"] "There is no collections manifest yet",
    0x008a CannotApplyCollectionsManifest "CANNOT_APPLY_COLLECTIONS_MANIFEST" ["invalid-input"] "The collections manifest cannot be applied",
    0x008c UnknownScope "UNKNOWN_SCOPE" ["invalid-input"] "There is no such scope",
    0x008d DcpStreamIdInvalid "DCP stream-ID invalid" ["invalid-input"] "The DCP stream identifier is not valid here",
    0x00a0 DurabilityInvalidLevel "DurabilityInvalidLevel" ["invalid-input"] "The durability requirement is not valid",
    0x00a1 DurabilityImpossible "DurabilityImpossible" ["invalid-input" "item-only"] "There are too few nodes for the durability requirement",
    0x00a2 SyncWriteInProgress "SyncWriteInProgress" ["item-only" "retry-later"] "A durable write of the document is under way",
    0x00a3 SyncWriteAmbiguous "SyncWriteAmbiguous" ["item-only"] "It is not known whether the durable write took place",
    0x00a4 SyncWriteReCommitInProgress "SyncWriteReCommitInProgress" ["item-only" "retry-later"] "A durable write of the document is being committed",
    0x00a5 RangeScanCancelled "RangeScanCancelled" ["success"] "The range scan was cancelled",
    0x00a6 RangeScanMore "RangeScanMore" ["success"] "The range scan has more",
    0x00a7 RangeScanComplete "RangeScanComplete" ["success"] "The range scan is complete",
    0x00a8 VbUuidNotEqual "VbUuidNotEqual" ["invalid-input"] "The vBucket has another uuid",
    0x00c0 SubdocPathEnoent "SUBDOC_PATH_ENOENT" ["item-only" "subdoc"] "The path does not exist",
    0x00c1 SubdocPathMismatch "SUBDOC_PATH_MISMATCH" ["item-only" "subdoc"] "The path meets a value of another kind",
    0x00c2 SubdocPathEinval "SUBDOC_PATH_EINVAL" ["invalid-input" "subdoc"] "The path is not well formed",
    0x00c3 SubdocPathE2big "SUBDOC_PATH_E2BIG" ["invalid-input" "subdoc"] "The path has too many components",
    0x00c4 SubdocPathE2deep "SUBDOC_PATH_E2DEEP" ["invalid-input" "subdoc"] "The document is too deep",
    0x00c5 SubdocValueCantinsert "SUBDOC_VALUE_CANTINSERT" ["invalid-input" "subdoc"] "The value cannot be inserted there",
    0x00c6 SubdocDocNotjson "SUBDOC_DOC_NOTJSON" ["item-only" "subdoc"] "The document is not JSON",
    0x00c7 SubdocNumErange "SUBDOC_NUM_ERANGE" ["item-only" "subdoc"] "The number at the path is out of range",
    0x00c8 SubdocDeltaEinval "SUBDOC_DELTA_EINVAL" ["item-only" "subdoc"] "The delta is not valid",
    0x00c9 SubdocPathEexists "SUBDOC_PATH_EEXISTS" ["item-only" "subdoc"] "The path exists",
    0x00ca SubdocValueEtoodeep "SUBDOC_VALUE_ETOODEEP" ["invalid-input" "item-only" "subdoc"] "The value would make the document too deep",
    0x00cb SubdocInvalidCombo "SUBDOC_INVALID_COMBO" ["invalid-input" "subdoc"] "The operations do not go together",
    0x00cc SubdocMultiPathFailure "SUBDOC_MULTI_PATH_FAILURE" ["special-handling" "subdoc"] "At least one path failed",
    0x00cd SubdocSuccessDeleted "SUBDOC_SUCCESS_DELETED" ["item-deleted" "subdoc" "success"] "The request succeeded on a deleted document",
    0x00ce SubdocXattrInvalidFlagCombo "SUBDOC_XATTR_INVALID_FLAG_COMBO" ["invalid-input" "subdoc"] "The flags do not go together",
    0x00cf SubdocXattrInvalidKeyCombo "SUBDOC_XATTR_INVALID_KEY_COMBO" ["invalid-input" "subdoc"] "The extended attributes do not go together",
    0x00d0 SubdocXattrUnknownMacro "SUBDOC_XATTR_UNKNOWN_MACRO" ["invalid-input" "subdoc"] "The macro is not known",
    0x00d1 SubdocXattrUnknownVattr "SUBDOC_XATTR_UNKNOWN_VATTR" ["invalid-input" "subdoc"] "The virtual attribute is not known",
    0x00d2 SubdocXattrCantModifyVattr "SUBDOC_XATTR_CANT_MODIFY_VATTR" ["invalid-input" "subdoc"] "Virtual attributes cannot be changed",
    0x00d3 SubdocMultiPathFailureDeleted "SUBDOC_MULTI_PATH_FAILURE_DELETED" ["item-deleted" "special-handling" "subdoc"] "At least one path failed on a deleted document",
    0x00d4 SubdocInvalidXattrOrder "SUBDOC_INVALID_XATTR_ORDER" ["invalid-input" "subdoc"] "Extended attributes must come before the body",
    0x00d5 SubdocXattrUnknownVattrMacro "SUBDOC_XATTR_UNKNOWN_VATTR_MACRO" ["invalid-input" "subdoc"] "The macro of a virtual attribute is not known",
    0x00d6 SubdocCanOnlyReviveDeletedDocuments "SUBDOC_CAN_ONLY_REVIVE_DELETED_DOCUMENTS" ["item-only" "subdoc"] "Only deleted documents can be revived",
    0x00d7 SubdocDeletedDocumentCantHaveValue "SUBDOC_DELETED_DOCUMENT_CANT_HAVE_VALUE" ["item-only" "subdoc"] "A deleted document cannot have a value",
    0x00d8 SubdocFieldNotBinaryValue "SUBDOC_FIELD_NOT_BINARY_VALUE" ["item-only" "subdoc"] "The field is not a binary value",
}
