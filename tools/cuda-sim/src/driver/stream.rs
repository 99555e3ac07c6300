//! Streams: made, waited for, ended. Work is done in the order of the calls, so a wait only has to look.

use serde_json::json;

use super::code::{Answer, Code};
use super::fault::Operation;
use super::handles::Handle;
use super::objects::Stream;
use super::sim::Sim;

/// The least urgent and the most urgent priority of a stream.
pub(crate) const PRIORITIES: (i32, i32) = (0, -5);

impl Sim {
    /// Makes a stream in context `current`. A priority outside of the range is taken to its end.
    ///
    /// # Errors
    /// The errors of every call.
    pub(crate) fn create_stream(&self, current: Handle, flags: u32, priority: i32) -> Answer<Handle> {
        let mut state = self.state();
        let device = state.device_of(current)?;
        self.gate(&mut state, device, Operation::StreamCreate)?;
        let priority = priority.clamp(PRIORITIES.1, PRIORITIES.0);
        let stream = state.streams.insert(Stream { device, context: current, flags, priority, graph: None });
        self.log.trace("stream", || json!({ "device": device, "stream": format!("{stream:#x}") }));
        Ok(stream)
    }

    /// Ends a stream; what it had to do is done.
    ///
    /// # Errors
    /// `INVALID_HANDLE`; the sticky error, after which the stream is gone too.
    pub(crate) fn destroy_stream(&self, stream: Handle) -> Answer {
        let mut state = self.state();
        let stream = state.streams.remove(stream)?;
        state.device(stream.device)?.poison.map_or(Ok(()), Err)
    }

    /// Waits for a stream.
    ///
    /// # Errors
    /// The errors of every call; `STREAM_CAPTURE_UNSUPPORTED` for one that records.
    pub(crate) fn synchronise_stream(&self, current: Handle, stream: Handle) -> Answer {
        let mut state = self.state();
        let place = state.place(current, stream)?;
        self.gate(&mut state, place.device, Operation::Synchronise)?;
        self.log.trace("sync", || json!({ "device": place.device, "stream": format!("{stream:#x}") }));
        match place.graph {
            Some(_) => state.refuse_while_recording(place.device),
            None => Ok(()),
        }
    }

    /// Waits for everything on the GPU of context `current`.
    ///
    /// # Errors
    /// As [`Sim::synchronise_stream`].
    pub(crate) fn synchronise_context(&self, current: Handle) -> Answer {
        let mut state = self.state();
        let device = state.device_of(current)?;
        self.gate(&mut state, device, Operation::Synchronise)?;
        self.log.trace("sync", || json!({ "device": device }));
        state.refuse_while_recording(device)
    }

    /// Whether a stream has done everything. It always has, because work is done at once.
    ///
    /// # Errors
    /// The sticky error; `STREAM_CAPTURE_UNSUPPORTED` for one that records.
    pub(crate) fn query_stream(&self, current: Handle, stream: Handle) -> Answer {
        let mut state = self.state();
        let place = state.place(current, stream)?;
        if let Some(code) = state.device(place.device)?.poison {
            return Err(code);
        }
        match place.graph {
            Some(_) => state.refuse_while_recording(place.device),
            None => Ok(()),
        }
    }

    /// Lets a stream wait for an event. One that was recorded in a graph draws the stream into that recording.
    ///
    /// # Errors
    /// The errors of every call; `STREAM_CAPTURE_ISOLATION` (905) for a recording stream and an event from outside.
    pub(crate) fn wait_event(&self, current: Handle, stream: Handle, event: Handle) -> Answer {
        let mut state = self.state();
        let place = state.place(current, stream)?;
        self.gate(&mut state, place.device, Operation::StreamWait)?;
        match (place.graph, state.events.get(event)?.graph) {
            (None, None) => Ok(()),
            (Some(recording), Some(recorded)) if recording == recorded => Ok(()),
            (Some(_), Some(_)) => Err(Code(902)),
            (Some(recording), None) => {
                state.graphs.get_mut(recording)?.spoiled = true;
                Err(Code(905))
            }
            (None, Some(recorded)) if stream > 2 => {
                state.streams.get_mut(stream)?.graph = Some(recorded);
                Ok(())
            }
            (None, Some(_)) => Err(Code(906)),
        }
    }
}
