//! Small files of which both copies are missing, although other files say that they were there: that is damage, and not a
//! first start.
//!
//! *Guarantee:* what another file says is durable only after the missing file was, so that a start that was cut off is
//! never taken for damage.

use std::io;
use std::path::Path;

use base::env::{Disk, OpenMode};
use base::{SmallFile, SmallFileError};

use crate::cluster::membership;
use crate::node_files;

/// The list of buckets, which is written before the folder of a bucket that is in it says what that is.
pub(crate) fn list(disk: &dyn Disk, data: &Path) -> Option<SmallFileError> {
    let buckets = node_files::buckets_in(data);
    let names = match disk.read_dir(&buckets) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(source) => return Some(SmallFileError::Io { operation: "read", path: buckets, source }),
        Ok(names) => names,
    };
    let says = |name: &String| any_of_two(disk, &node_files::bucket(&buckets.join(name)));
    let what = |name: &String| format!("the folder of bucket {name} says that there was a list");
    missing(disk, &node_files::bucket_list(data), || names.iter().find(|name| says(name)).map(what))
}

/// The count of starts, which is written before the node's identity.
pub(crate) fn revision(disk: &dyn Disk, data: &Path) -> Option<SmallFileError> {
    let has_started = || any_of_two(disk, &node_files::identity(data));
    let what = || "the node has started before".to_owned();
    missing(disk, &node_files::revision(data), || has_started().then(what))
}

/// The identity of a member, which is written before the node is in a cluster.
pub(crate) fn identity(disk: &dyn Disk, data: &Path) -> Option<SmallFileError> {
    let belongs = || membership::belongs_to_cluster(disk, data).unwrap_or(true);
    let what = || "the folder belongs to a node of a cluster".to_owned();
    missing(disk, &node_files::identity(data), || belongs().then(what))
}

/// The error of a file that is missing, if something says that it was there.
pub(crate) fn missing(
    disk: &dyn Disk,
    file: &SmallFile,
    evidence: impl FnOnce() -> Option<String>,
) -> Option<SmallFileError> {
    if any_of_two(disk, file) {
        return None;
    }
    let what = format!("it and its copy are missing, and {}", evidence()?);
    Some(SmallFileError::Damaged { path: file.path(), what })
}

/// Whether one of a small file's two files is there, or cannot be told not to be.
fn any_of_two(disk: &dyn Disk, file: &SmallFile) -> bool {
    let is_there = |path: &Path| match disk.open(path, OpenMode::Read) {
        Err(error) => error.kind() != io::ErrorKind::NotFound,
        Ok(_) => true,
    };
    is_there(&file.path()) || is_there(&file.copy_path())
}

#[cfg(test)]
mod tests {
    use crate::written;
    use base::env::Env;

    use super::*;
    use crate::{alternate, audit, kept_users};

    const DATA: &str = "/data";

    type Missing = fn(&dyn Disk, &Path) -> Option<SmallFileError>;

    #[test]
    fn a_file_is_missing_if_another_says_that_it_was_there() {
        let of_bucket = Path::new("/data/buckets/b");
        let data = Path::new(DATA);
        let cases: [(Missing, SmallFile, SmallFile); 3] = [
            (list, node_files::bucket_list(data), node_files::bucket(of_bucket)),
            (revision, node_files::revision(data), node_files::identity(data)),
            (identity, node_files::identity(data), SmallFile::new(data, "cluster-founding")),
        ];
        // What was written is named by the next start, or by who wrote it.
        for file in [kept_users::file(data), audit::settings::file(data), alternate::file(data)] {
            let (env, _) = Env::sim(1);
            env.disk.create_dir_all(data).expect("a folder");
            let open = || written::open(&*env.disk, data, &file, |_, _| Ok(()), |fault| panic!("{fault}"));
            let name = file.path();
            assert!(matches!(open(), Ok(None)), "{}: a first start", name.display());
            file.write(&*env.disk, b"of an earlier version").expect("written");
            assert!(matches!(open(), Ok(Some(()))), "{}", name.display());
            file.remove(&*env.disk).expect("removed");
            assert!(open().is_err_and(|error| error.is_damage()), "{}", name.display());
            assert!(
                written::written(&*env.disk, data, &file).is_some()
                    && written::fault(&*env.disk, data).is_none()
            );
            written::forget(&*env.disk, data, &file).expect("written");
            assert!(matches!(open(), Ok(None)), "{}: that it is gone is known", name.display());
            written::write(&*env.disk, data, &file, b"").expect("written");
            file.remove(&*env.disk).expect("removed");
            assert!(open().is_err_and(|error| error.is_damage()), "{}", name.display());
        }
        for (is_missing, file, evidence) in cases {
            let (env, _) = Env::sim(1);
            env.disk.create_dir_all(of_bucket).expect("a folder");
            let asked = |of: &str| {
                let missing = is_missing(&*env.disk, data);
                assert!(missing.iter().all(|error| error.is_damage()), "{of}: {missing:?}");
                missing.is_some()
            };
            assert!(!asked("a first start"));
            evidence.write(&*env.disk, b"").expect("written");
            let name = file.path();
            assert!(asked("it was there"), "{}", name.display());
            env.disk.remove_file(&evidence.path()).expect("removed");
            assert!(asked("the copy says so, too"), "{}", name.display());
            file.write(&*env.disk, b"").expect("written");
            assert!(!asked("it is there"), "{}", name.display());
            env.disk.remove_file(&file.path()).expect("removed");
            assert!(!asked("its copy is there"), "{}", name.display());
        }
    }
}
