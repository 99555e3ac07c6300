//! Events: marks in a stream, with the host's time.

use std::time::Instant;

use super::code::{Answer, Code};
use super::fault::Operation;
use super::handles::Handle;
use super::objects::Event;
use super::sim::Sim;

/// `CU_EVENT_DISABLE_TIMING`.
const WITHOUT_TIME: u32 = 2;

impl Sim {
    /// Makes an event in context `current`.
    ///
    /// # Errors
    /// The errors of every call.
    pub(crate) fn create_event(&self, current: Handle, flags: u32) -> Answer<Handle> {
        let mut state = self.state();
        let device = state.device_of(current)?;
        self.gate(&mut state, device, Operation::EventCreate)?;
        Ok(state.events.insert(Event { device, flags, recorded: None, graph: None }))
    }

    /// Ends an event.
    ///
    /// # Errors
    /// `INVALID_HANDLE`; the sticky error, after which the event is gone too.
    pub(crate) fn destroy_event(&self, event: Handle) -> Answer {
        let mut state = self.state();
        let event = state.events.remove(event)?;
        state.device(event.device)?.poison.map_or(Ok(()), Err)
    }

    /// Marks where a stream is.
    ///
    /// # Errors
    /// The errors of every call; `INVALID_HANDLE` for a stream of another GPU.
    pub(crate) fn record_event(&self, current: Handle, event: Handle, stream: Handle) -> Answer {
        let mut state = self.state();
        let place = state.place(current, stream)?;
        self.gate(&mut state, place.device, Operation::EventRecord)?;
        let event = state.events.get_mut(event)?;
        if event.device != place.device {
            return Err(Code::INVALID_HANDLE);
        }
        event.graph = place.graph;
        event.recorded = place.graph.is_none().then(Instant::now);
        Ok(())
    }

    /// Waits for an event. For one that was never recorded there is no wait.
    ///
    /// # Errors
    /// The errors of every call; `CAPTURED_EVENT` (907) for one in a graph.
    pub(crate) fn synchronise_event(&self, event: Handle) -> Answer {
        let mut state = self.state();
        let device = state.events.get(event)?.device;
        self.gate(&mut state, device, Operation::EventSynchronise)?;
        if state.events.get(event)?.graph.is_some() { Err(Code(907)) } else { Ok(()) }
    }

    /// Whether an event has happened. It always has, because work is done at once.
    ///
    /// # Errors
    /// The sticky error; `CAPTURED_EVENT` (907) for one in a graph.
    pub(crate) fn query_event(&self, event: Handle) -> Answer {
        let state = self.state();
        let event = state.events.get(event)?;
        if let Some(code) = state.device(event.device)?.poison {
            return Err(code);
        }
        if event.graph.is_some() { Err(Code(907)) } else { Ok(()) }
    }

    /// Milliseconds of the host's clock between two events.
    ///
    /// # Errors
    /// `INVALID_HANDLE` for an event that keeps no time or was never recorded; the sticky error.
    pub(crate) fn elapsed(&self, from: Handle, to: Handle) -> Answer<f32> {
        let state = self.state();
        let (from, to) = (state.events.get(from)?, state.events.get(to)?);
        if let Some(code) = state.device(from.device)?.poison {
            return Err(code);
        }
        let (Some(start), Some(end)) = (from.recorded, to.recorded) else { return Err(Code::INVALID_HANDLE) };
        if (from.flags | to.flags) & WITHOUT_TIME != 0 {
            return Err(Code::INVALID_HANDLE);
        }
        let seconds = match end.checked_duration_since(start) {
            Some(forward) => forward.as_secs_f64(),
            None => -start.duration_since(end).as_secs_f64(),
        };
        Ok((seconds * 1e3) as f32)
    }
}
