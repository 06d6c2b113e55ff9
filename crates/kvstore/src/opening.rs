//! Opening the store behind a journal, whichever it is.

use std::path::Path;
use std::sync::Arc;

use base::env::Env;

use crate::catalog::Catalog;
use crate::couch::{Couch, Trust};
use crate::failure::Failure;
use crate::files::{Files, FilesConfig, OnRecord};
use crate::log::{self, Log};
use crate::rocks;

impl FilesConfig {
    /// Refuses a folder whose catalog is older than what is in it, if that can be told before anything is believed.
    pub(crate) fn refuse_older(&self, env: &Env, dir: &Path, catalog: &Catalog) -> Result<(), Failure> {
        match self {
            FilesConfig::Log(_) => log::refuse_older(env, dir, catalog),
            // Each vBucket is compared with what is listed of it.
            FilesConfig::Couch(_) | FilesConfig::Rocks(_) => Ok(()),
        }
    }

    /// Opens what is in a folder: as the journal has it on record, or else as the catalog lists it.
    pub(crate) fn open(
        &self,
        env: Env,
        dir: &Path,
        catalog: Arc<Catalog>,
        record: Option<&OnRecord<'_>>,
    ) -> Result<Box<dyn Files>, Failure> {
        let config = match *self {
            FilesConfig::Log(config) => {
                return Ok(Box::new(Log::open_with(env, dir, config, catalog, record)?));
            }
            FilesConfig::Rocks(config) => return rocks::open_with(env, dir, config, catalog, record),
            FilesConfig::Couch(config) => config,
        };
        Ok(Box::new(match record {
            None => Couch::open_as_listed(env, dir, config, catalog)?,
            Some(OnRecord { commits, missing, told }) => {
                let trust = Trust::Journal { record: commits, missing, told: *told };
                Couch::open_with(env, dir, config, catalog, &trust)?
            }
        }))
    }
}
