//! DCP: from cursors to messages, and from messages to applied items. State machines without sockets and threads.

mod agreement;
mod consumer;
mod content;
mod figures;
mod file_fill;
mod filter;
mod frame_writer;
#[doc(hidden)]
pub mod fuzz;
mod handover;
mod interest;
mod pending;
mod producer;
mod sink;
mod stream;
mod sync_writes;
mod system_event;
mod turn;

pub use agreement::{Agreement, BackfillOrder, OutOfOrder, Priority, Side};
pub use consumer::{
    Consumer, ConsumerConfig, ConsumerCounts, Disconnect, Mode, RollBack, Settled, Stage, TURN_BYTES,
    TURN_MESSAGES, Trouble, VbAsked, VbProgress,
};
pub use content::Features;
pub use figures::{StreamFigures, StreamMoment, StreamStage};
pub use file_fill::{FileFill, FillFailure, FillStep};
pub use filter::{Filter, FilterRefusal, MOST_FILTER_BYTES};
pub use producer::{
    AcknowledgeRefusal, Pause, Producer, Progress, Step, StreamKey, StreamRequestRefusal, Tick,
};
pub use sink::Sink;
pub use system_event::read_event;
