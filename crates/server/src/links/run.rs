//! Running a link: each connection until it breaks, then the next one after a pause.

use std::sync::Arc;
use std::time::Duration;

use ::node::replication::{Link, LinkError, Rollbacks};
use ::node::sasl::client::SaltedPassword;

use super::drive::Drive;
use super::wire::Wire;
use crate::tls::PeerTls;

/// How long it may take until the other node has let us in.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Follows until the link is closed.
pub(super) async fn run(link: Arc<Link>, tls: PeerTls) {
    let mut rollbacks = link.rollbacks();
    let mut known = None;
    let mut failures = 0;
    loop {
        let Err(error) = follow(&link, &tls, &mut rollbacks, &mut known).await else { return };
        let had_streams = link.broken(&error);
        // Who breaks the protocol does so again.
        if had_streams && !error.is_violation() {
            failures = 0;
        }
        let pause = link.pause(failures);
        failures = failures.saturating_add(1);
        // If something else is wanted meanwhile, mostly somebody has come back.
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = link.changed() => {}
        }
        if link.is_closed() {
            return;
        }
    }
}

/// One connection; returns without an error when the link is closed.
async fn follow(
    link: &Link,
    tls: &PeerTls,
    rollbacks: &mut Rollbacks,
    known: &mut Option<SaltedPassword>,
) -> Result<(), LinkError> {
    link.connecting();
    let opening = async {
        let mut wire = Wire::connect(link.env(), link.node(), tls.for_documents()).await?;
        let agreed = wire.log_in(link.login(), known).await?;
        Ok::<_, LinkError>((wire, agreed))
    };
    let (wire, agreed) = tokio::select! {
        opened = tokio::time::timeout(LOGIN_TIMEOUT, opening) => opened.map_err(|_| LinkError::TimeOut)??,
        () = link.closed() => return Ok(()),
    };
    Drive::new(link, wire, agreed, rollbacks).run().await
}
