//! Mutations: all specs or none, from the current version to a new one.

use super::Document;
use super::existence::{Base, changeable, empty_root};
use super::macros::{MacroKind, Placeholder};
use super::virtual_attributes::View;
use super::workspace::{Fault, Workspace};
use crate::request::{MutationOp, MutationRequest, doc_flag};
use crate::xattr::XattrError;
use crate::{status, xattr};

/// A new version of a document, complete but for what its commit decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewDocument {
    /// Attributes (if the datatype says so) and body, not compressed.
    pub value: Vec<u8>,
    /// JSON and xattr bits.
    pub datatype: u8,
    /// Whether it is a tombstone.
    pub deleted: bool,
    /// What is filled in when it is committed.
    pub late: Late,
}

/// The digits that are known only once a mutation has its CAS and seqno.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Late {
    /// Where they go.
    pub placeholders: Vec<Placeholder>,
    /// Where the body starts.
    pub body_at: usize,
}

impl Late {
    /// Fills them into `value`, the value they were computed with. Changes no length.
    ///
    /// The CAS is written with its bytes swapped (as stored on a little-endian machine), as recorded.
    pub fn fill(&self, value: &mut [u8], cas: u64, seqno: u64) {
        for placeholder in &self.placeholders {
            match placeholder.kind {
                MacroKind::Cas => placeholder.fill(value, cas.swap_bytes()),
                MacroKind::Seqno => placeholder.fill(value, seqno),
                MacroKind::ValueCrc32c => {}
            }
        }
        if self.placeholders.iter().any(|placeholder| placeholder.offset >= self.body_at) {
            self.fill_checksums(value);
        }
    }

    /// The checksum of the body is known before the commit, unless a macro was copied into the body.
    fn fill_checksums(&self, value: &mut [u8]) {
        let is_checksum = |one: &&Placeholder| one.kind == MacroKind::ValueCrc32c;
        if !self.placeholders.iter().any(|one| is_checksum(&one)) {
            return;
        }
        let checksum = crc32c::crc32c(&value[self.body_at..]);
        for placeholder in self.placeholders.iter().filter(is_checksum) {
            placeholder.fill(value, u64::from(checksum));
        }
    }
}

/// What a mutation request is answered with, and what it makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MutationOutcome {
    /// The status of the reply.
    pub status: u16,
    /// Whether the reply takes the form of a single-path command.
    pub is_single: bool,
    /// The spec that failed, with its status, if several paths were asked for.
    pub failed: Option<(u8, u16)>,
    /// Values to return, with the index of their spec.
    pub values: Vec<(u8, Vec<u8>)>,
    /// The new version, to be stored; if there is one, `status` is a success.
    pub new: Option<NewDocument>,
}

impl MutationOutcome {
    fn refused(request: &MutationRequest<'_>, status: u16) -> MutationOutcome {
        MutationOutcome { status, is_single: request.is_single, failed: None, values: Vec::new(), new: None }
    }

    fn failed(request: &MutationRequest<'_>, index: usize, fault: Fault) -> MutationOutcome {
        match fault {
            Fault::Request(status) => MutationOutcome::refused(request, status),
            Fault::Path(error) if request.is_single => MutationOutcome::refused(request, error.status()),
            Fault::Path(error) => MutationOutcome {
                failed: Some((index as u8, error.status())),
                ..MutationOutcome::refused(request, status::MULTI_PATH_FAILURE)
            },
        }
    }
}

fn view(document: Document<'_>) -> Result<View<'_>, XattrError> {
    let (xattrs, body) = xattr::split(document.value, document.datatype)?;
    Ok(View { document, xattrs, body, hides_system: false })
}

/// What the mutation works on, or the status that it gets instead.
fn start<'a>(current: Option<Document<'a>>, request: &MutationRequest<'_>) -> Result<Workspace<'a>, u16> {
    let specs = request.specs.as_slice();
    match changeable(current, request.doc_flags, request.cas)? {
        Base::Existing { document, deleted } => {
            let deletes = specs.iter().any(|spec| spec.op == MutationOp::DeleteDoc);
            if document.deleted && deletes && !deleted {
                return Err(status::KEY_NOT_FOUND);
            }
            let view = view(document).map_err(|_| status::INTERNAL)?;
            Ok(Workspace::existing(view, deleted))
        }
        Base::New { deleted } => {
            let has_no_root = request.doc_flags & doc_flag::CREATE_AS_DELETED != 0;
            let root = if has_no_root { b"" } else { empty_root(specs) };
            Ok(Workspace::new(root, deleted))
        }
    }
}

/// Runs a mutation against the current version; `None` is a document that was never there.
///
/// Stores nothing: the caller commits `new` while no other writer can come between.
pub fn mutate(current: Option<Document<'_>>, request: &MutationRequest<'_>) -> MutationOutcome {
    let mut workspace = match start(current, request) {
        Ok(workspace) => workspace,
        Err(status) => return MutationOutcome::refused(request, status),
    };
    let mut values = Vec::new();
    for (index, spec) in request.specs.as_slice().iter().enumerate() {
        match workspace.apply(spec, request.doc_flags) {
            Ok(Some(value)) => values.push((index as u8, value)),
            Ok(None) => {}
            Err(fault) => return MutationOutcome::failed(request, index, fault),
        }
    }
    let was_deleted = current.is_some_and(|document| document.deleted);
    // A tombstone without attributes is a tombstone still; one that would lose its last ones is not deleted again.
    if workspace.deletes && was_deleted && workspace.loses_attributes() {
        return MutationOutcome::refused(request, status::KEY_NOT_FOUND);
    }
    let stays_deleted = workspace.is_deleted() && (!workspace.deletes || was_deleted);
    let status = if stays_deleted { status::SUCCESS_DELETED } else { status::SUCCESS };
    let mut new = workspace.finish();
    new.late.fill_checksums(&mut new.value);
    MutationOutcome { status, is_single: request.is_single, failed: None, values, new: Some(new) }
}
