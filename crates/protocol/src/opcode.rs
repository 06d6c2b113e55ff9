//! The numbers of the commands (BinaryProtocol.md, Command Opcodes).

macro_rules! opcodes {
    ($($code:literal $constant:ident $name:literal,)*) => {
        $(#[doc = concat!("`", $name, "`")] pub const $constant: u8 = $code;)*

        /// The command's name, if the number belongs to one.
        pub const fn name(opcode: u8) -> Option<&'static str> {
            match opcode {
                $($code => Some($name),)*
                _ => None,
            }
        }

        /// The name of its constant here.
        const fn constant_name(opcode: u8) -> Option<&'static str> {
            match opcode {
                $($code => Some(stringify!($constant)),)*
                _ => None,
            }
        }
    };
}

opcodes! {
    0x00 GET "Get",
    0x01 SET "Set",
    0x02 ADD "Add",
    0x03 REPLACE "Replace",
    0x04 DELETE "Delete",
    0x05 INCREMENT "Increment",
    0x06 DECREMENT "Decrement",
    0x07 QUIT "Quit",
    0x08 FLUSH "Flush",
    0x09 GETQ "GetQ",
    0x0a NOOP "Noop",
    0x0b VERSION "Version",
    0x0c GETK "GetK",
    0x0d GETKQ "GetKQ",
    0x0e APPEND "Append",
    0x0f PREPEND "Prepend",
    0x10 STAT "Stat",
    0x11 SETQ "SetQ",
    0x12 ADDQ "AddQ",
    0x13 REPLACEQ "ReplaceQ",
    0x14 DELETEQ "DeleteQ",
    0x15 INCREMENTQ "IncrementQ",
    0x16 DECREMENTQ "DecrementQ",
    0x17 QUITQ "QuitQ",
    0x18 FLUSHQ "FlushQ",
    0x19 APPENDQ "AppendQ",
    0x1a PREPENDQ "PrependQ",
    0x1b VERBOSITY "Verbosity",
    0x1c TOUCH "Touch",
    0x1d GAT "GetAndTouch",
    0x1e GATQ "GetAndTouchQ",
    0x1f HELLO "Hello",
    0x20 SASL_LIST_MECHS "SaslListMechs",
    0x21 SASL_AUTH "SaslAuth",
    0x22 SASL_STEP "SaslStep",
    0x3d SET_VBUCKET "SetVBucket",
    0x3e GET_VBUCKET "GetVBucket",
    0x3f DELETE_VBUCKET "DeleteVBucket",
    0x48 GET_ALL_VB_SEQNOS "GetAllVbSeqnos",
    0x49 GET_EX "GetEx",
    0x4a GET_EX_REPLICA "GetExReplica",
    0x4b MUTATE_WITH_META "MutateWithMeta",
    0x50 DCP_OPEN "DcpOpen",
    0x51 DCP_ADD_STREAM "DcpAddStream",
    0x52 DCP_CLOSE_STREAM "DcpCloseStream",
    0x53 DCP_STREAM_REQ "DcpStreamReq",
    0x54 DCP_GET_FAILOVER_LOG "DcpGetFailoverLog",
    0x55 DCP_STREAM_END "DcpStreamEnd",
    0x56 DCP_SNAPSHOT_MARKER "DcpSnapshotMarker",
    0x57 DCP_MUTATION "DcpMutation",
    0x58 DCP_DELETION "DcpDeletion",
    0x59 DCP_EXPIRATION "DcpExpiration",
    0x5b DCP_SET_VBUCKET_STATE "DcpSetVBucketState",
    0x5c DCP_NOOP "DcpNoop",
    0x5d DCP_BUFFER_ACK "DcpBufferAck",
    0x5e DCP_CONTROL "DcpControl",
    0x5f DCP_SYSTEM_EVENT "DcpSystemEvent",
    0x60 DCP_PREPARE "DcpPrepare",
    0x61 DCP_SEQNO_ACKNOWLEDGED "DcpSeqnoAcknowledged",
    0x62 DCP_COMMIT "DcpCommit",
    0x63 DCP_ABORT "DcpAbort",
    0x64 DCP_SEQNO_ADVANCED "DcpSeqnoAdvanced",
    0x65 DCP_OSO_SNAPSHOT "DcpOsoSnapshot",
    0x80 STOP_PERSISTENCE "StopPersistence",
    0x81 START_PERSISTENCE "StartPersistence",
    0x82 SET_PARAM "SetParam",
    0x83 GET_REPLICA "GetReplica",
    0x87 LIST_BUCKETS "ListBuckets",
    0x89 SELECT_BUCKET "SelectBucket",
    0x91 OBSERVE_SEQNO "ObserveSeqno",
    0x92 OBSERVE "Observe",
    0x93 EVICT_KEY "EvictKey",
    0x94 GET_LOCKED "GetLocked",
    0x95 UNLOCK_KEY "UnlockKey",
    0x96 GET_FAILOVER_LOG "GetFailoverLog",
    0x97 LAST_CLOSED_CHECKPOINT "LastClosedCheckpoint",
    0xa0 GET_META "GetMeta",
    0xa1 GETQ_META "GetQMeta",
    0xa2 SET_WITH_META "SetWithMeta",
    0xa3 SETQ_WITH_META "SetQWithMeta",
    0xa4 ADD_WITH_META "AddWithMeta",
    0xa5 ADDQ_WITH_META "AddQWithMeta",
    0xa8 DELETE_WITH_META "DeleteWithMeta",
    0xa9 DELETEQ_WITH_META "DeleteQWithMeta",
    0xaa CREATE_CHECKPOINT "CreateCheckpoint",
    0xad ENABLE_TRAFFIC "EnableTraffic",
    0xae DISABLE_TRAFFIC "DisableTraffic",
    0xb1 CHECKPOINT_PERSISTENCE "CheckpointPersistence",
    0xb2 RETURN_META "ReturnMeta",
    0xb3 COMPACT_DB "CompactDb",
    0xb4 SET_CLUSTER_CONFIG "SetClusterConfig",
    0xb5 GET_CLUSTER_CONFIG "GetClusterConfig",
    0xb6 GET_RANDOM_KEY "GetRandomKey",
    0xb7 SEQNO_PERSISTENCE "SeqnoPersistence",
    0xb8 GET_KEYS "GetKeys",
    0xb9 SET_COLLECTIONS_MANIFEST "SetCollectionsManifest",
    0xba GET_COLLECTIONS_MANIFEST "GetCollectionsManifest",
    0xbb GET_COLLECTION_ID "GetCollectionId",
    0xbc GET_SCOPE_ID "GetScopeId",
    0xc5 SUBDOC_GET "SubdocGet",
    0xc6 SUBDOC_EXISTS "SubdocExists",
    0xc7 SUBDOC_DICT_ADD "SubdocDictAdd",
    0xc8 SUBDOC_DICT_UPSERT "SubdocDictUpsert",
    0xc9 SUBDOC_DELETE "SubdocDelete",
    0xca SUBDOC_REPLACE "SubdocReplace",
    0xcb SUBDOC_ARRAY_PUSH_LAST "SubdocArrayPushLast",
    0xcc SUBDOC_ARRAY_PUSH_FIRST "SubdocArrayPushFirst",
    0xcd SUBDOC_ARRAY_INSERT "SubdocArrayInsert",
    0xce SUBDOC_ARRAY_ADD_UNIQUE "SubdocArrayAddUnique",
    0xcf SUBDOC_COUNTER "SubdocCounter",
    0xd0 SUBDOC_MULTI_LOOKUP "SubdocMultiLookup",
    0xd1 SUBDOC_MULTI_MUTATION "SubdocMultiMutation",
    0xd2 SUBDOC_GET_COUNT "SubdocGetCount",
    0xd3 SUBDOC_REPLACE_BODY_WITH_XATTR "SubdocReplaceBodyWithXattr",
    0xda RANGE_SCAN_CREATE "RangeScanCreate",
    0xdb RANGE_SCAN_CONTINUE "RangeScanContinue",
    0xdc RANGE_SCAN_CANCEL "RangeScanCancel",
    0xe0 PREPARE_SNAPSHOT "PrepareSnapshot",
    0xe1 RELEASE_SNAPSHOT "ReleaseSnapshot",
    0xe2 DOWNLOAD_SNAPSHOT "DownloadSnapshot",
    0xe3 GET_FILE_FRAGMENT "GetFileFragment",
    0xef BUCKET_SNAPSHOT "BucketSnapshot",
    0xf3 GET_CMD_TIMER "GetCmdTimer",
    0xf4 SET_CTRL_TOKEN "SetCtrlToken",
    0xf5 GET_CTRL_TOKEN "GetCtrlToken",
    0xf6 UPDATE_EXTERNAL_USER_PERMISSIONS "UpdateExternalUserPermissions",
    0xfb DROP_PRIVILEGE "DropPrivilege",
    0xfc ADJUST_TIMEOFDAY "AdjustTimeofday",
    0xfd EWOULDBLOCK_CTL "EwouldblockCtl",
    0xfe GET_ERROR_MAP "GetErrorMap",
}

/// The request with which a server tells a client of a new cluster map (magic 0x82, so it shares its number with `Set`).
pub const CLUSTERMAP_CHANGE_NOTIFICATION: u8 = 0x01;

/// The command's name as kv_engine prints it in metrics and logs (`GET`, `SUBDOC_MULTI_LOOKUP`), if the number belongs to
/// one.
pub const fn field_name(opcode: u8) -> Option<&'static str> {
    match opcode {
        DELETE_VBUCKET => Some("DEL_VBUCKET"),
        DCP_BUFFER_ACK => Some("DCP_BUFFER_ACKNOWLEDGEMENT"),
        DELETE_WITH_META => Some("DEL_WITH_META"),
        DELETEQ_WITH_META => Some("DELQ_WITH_META"),
        SET_COLLECTIONS_MANIFEST => Some("COLLECTIONS_SET_MANIFEST"),
        GET_COLLECTIONS_MANIFEST => Some("COLLECTIONS_GET_MANIFEST"),
        GET_COLLECTION_ID => Some("COLLECTIONS_GET_ID"),
        GET_SCOPE_ID => Some("COLLECTIONS_GET_SCOPE_ID"),
        UPDATE_EXTERNAL_USER_PERMISSIONS => Some("UPDATE_USER_PERMISSIONS"),
        DROP_PRIVILEGE => Some("DROP_PRIVILEGES"),
        EWOULDBLOCK_CTL => Some("EWB_CTL"),
        opcode => constant_name(opcode),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_has_a_name_of_its_own_in_the_field() {
        let mut names: Vec<&str> = (0..=u8::MAX).filter_map(field_name).collect();
        let count = names.len();
        assert_eq!(count, (0..=u8::MAX).filter_map(name).count());
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        let field = [GET, GAT, SUBDOC_MULTI_LOOKUP, DELETE_WITH_META, 0x30].map(field_name);
        assert_eq!(
            field,
            [Some("GET"), Some("GAT"), Some("SUBDOC_MULTI_LOOKUP"), Some("DEL_WITH_META"), None]
        );
    }
}
