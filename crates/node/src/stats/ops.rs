//! How often clients did what, as several groups tell it.

use engine::OpCounts;

use super::Sheet;

/// What clients did in one bucket or several: found, stored and deleted documents, whatever the command was.
pub(super) fn put_ops(ops: &OpCounts, sheet: &mut Sheet) {
    sheet.put("cmd_get", ops.get_hits + ops.get_misses);
    sheet.put("get_hits", ops.get_hits);
    sheet.put("get_misses", ops.get_misses);
    sheet.put("cmd_set", ops.stores);
    sheet.put("delete_hits", ops.deletes);
}
