//! Running a link: each connection until it breaks, then the next one after a pause.

use std::sync::Arc;
use std::time::Duration;

use base::planted::{self, Bug};

use super::drive::Drive;
use super::fills::Fills;
use super::link::Link;
use super::login::LinkError;
use super::rollback::Rollbacks;
use super::wire::{Dial, Pace, first_of, log_in};
use crate::sasl::client::SaltedPassword;

/// How long it may take until the other node has let us in.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Follows until the link is closed.
pub async fn run(link: Arc<Link>, dial: impl Dial) {
    let (mut rollbacks, mut fills) = (link.rollbacks(), Fills::new(&link, dial.files()));
    let mut known = None;
    let mut failures = 0;
    loop {
        let Err(error) = follow(&link, &dial, (&mut rollbacks, &mut fills), &mut known).await else { return };
        let had_streams = link.broken(&error);
        if planted::is(Bug::RefusedLinkGivesUp) && matches!(error, LinkError::Bucket { .. }) {
            return;
        }
        // Who breaks the protocol does so again.
        if had_streams && !error.is_violation() {
            failures = 0;
        }
        let pause = link.pause(failures);
        failures = failures.saturating_add(1);
        // If something else is wanted meanwhile, mostly somebody has come back.
        first_of(link.changed(), dial.pace().timer().after(pause)).await;
        if link.is_closed() {
            return;
        }
    }
}

/// One connection; returns without an error when the link is closed.
async fn follow(
    link: &Link,
    dial: &impl Dial,
    (rollbacks, fills): (&mut Rollbacks, &mut Fills),
    known: &mut Option<SaltedPassword>,
) -> Result<(), LinkError> {
    link.connecting();
    let opening = async {
        let mut wire = dial.connect(link).await?;
        let agreed = log_in(&mut wire, link.login(), known).await?;
        Ok(Some((wire, agreed)))
    };
    let too_late = async {
        dial.pace().timer().after(LOGIN_TIMEOUT).await;
        Err(LinkError::TimeOut)
    };
    let closed = async {
        link.closed().await;
        Ok(None)
    };
    let Some((wire, agreed)) = first_of(first_of(closed, opening), too_late).await? else { return Ok(()) };
    Drive::new(link, wire, agreed, rollbacks, fills).run(dial.pace()).await
}
