//! The group of settings, as they are now.

use engine::Bucket;
use engine::settings::{Key, SETTINGS};

use super::Sheet;
use super::inquiry::{Inquiry, Refused};
use crate::naming::name_of;

/// `config`: every setting that can be changed while the bucket serves.
pub fn config(inquiry: &Inquiry<'_>, _: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    put_settings(inquiry.bucket, sheet);
    Ok(())
}

/// All settings, called as in kv_engine: `ep_` and the name.
pub(super) fn put_settings(bucket: &Bucket, sheet: &mut Sheet) {
    SETTINGS.iter().for_each(|setting| put_setting(bucket, setting.key, sheet));
}

/// One setting.
pub(super) fn put_setting(bucket: &Bucket, key: Key, sheet: &mut Sheet) {
    sheet.put(format_args!("ep_{}", name_of(key)), bucket.settings().show(key));
}
