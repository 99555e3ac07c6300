//! Work for a stream: done at once, in the order of the calls, or kept as a node of a graph while the stream records.

use super::code::{Answer, Code};
use super::fault::Operation;
use super::handles::Handle;
use super::objects::Work;
use super::sim::{Sim, State};

/// Where work goes: a GPU, and the graph that its stream records, if it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) device: usize,
    pub(crate) graph: Option<Handle>,
}

impl State {
    /// The place of `stream`; 0 to 2 are the default streams of context `current`.
    ///
    /// # Errors
    /// `INVALID_CONTEXT`, `INVALID_HANDLE`.
    pub(crate) fn place(&self, current: Handle, stream: Handle) -> Answer<Place> {
        if stream <= 2 {
            return Ok(Place { device: self.device_of(current)?, graph: None });
        }
        let stream = self.streams.get(stream)?;
        Ok(Place { device: stream.device, graph: stream.graph })
    }

    /// Refuses what must not happen while a stream of the GPU records, and spoils the recording, as a driver does.
    ///
    /// # Errors
    /// `STREAM_CAPTURE_UNSUPPORTED`.
    pub(crate) fn refuse_while_recording(&mut self, device: usize) -> Answer {
        let on_card = self.streams.iter().filter(|(_, stream)| stream.device == device);
        let recording: Vec<Handle> = on_card.filter_map(|(_, stream)| stream.graph).collect();
        for graph in &recording {
            self.graphs.get_mut(*graph)?.spoiled = true;
        }
        if recording.is_empty() { Ok(()) } else { Err(Code::STREAM_CAPTURE_UNSUPPORTED) }
    }
}

impl Sim {
    /// Gives `work` to a stream, counted as `operation`.
    ///
    /// Work is done when this returns. What a kernel does wrong becomes the GPU's sticky error, which the next call
    /// answers; a copy with addresses that are not the program's fails at once.
    ///
    /// # Errors
    /// The errors of every call; `INVALID_VALUE` for a range outside of the allocations.
    pub(crate) fn submit(&self, current: Handle, stream: Handle, operation: Operation, work: Work) -> Answer {
        let place = {
            let mut state = self.state();
            let place = state.place(current, stream)?;
            self.gate(&mut state, place.device, operation)?;
            if let Some(graph) = place.graph {
                state.graphs.get_mut(graph)?.nodes.push(work);
                return Ok(());
            }
            place
        };
        self.perform(place.device, &work)
    }

    /// Does one piece of work on a GPU.
    ///
    /// # Errors
    /// As [`Sim::submit`].
    pub(crate) fn perform(&self, device: usize, work: &Work) -> Answer {
        match work {
            Work::Launch(launch) => self.run(device, launch),
            Work::Transfer(transfer) => self.transfer(device, transfer),
            Work::Fill(fill) => self.fill(device, fill),
            Work::Call(call) => {
                (call.function)(call.data as *mut std::ffi::c_void);
                Ok(())
            }
            Work::Allocate | Work::Free => Ok(()),
        }
    }

    /// Refuses what must not happen while a stream of the current GPU records.
    ///
    /// # Errors
    /// `INVALID_CONTEXT`; `STREAM_CAPTURE_UNSUPPORTED`.
    pub(crate) fn refuse_while_recording(&self, current: Handle) -> Answer {
        let mut state = self.state();
        let device = state.device_of(current)?;
        state.refuse_while_recording(device)
    }
}
