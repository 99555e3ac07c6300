//! Graphs: work that a stream recorded, and its replay.

use super::code::{Answer, Code};
use super::fault::Operation;
use super::handles::Handle;
use super::objects::{Graph, Work};
use super::sim::Sim;

impl Sim {
    /// Begins to record the work of a stream instead of doing it.
    ///
    /// # Errors
    /// `STREAM_CAPTURE_UNSUPPORTED` for a default stream, `ILLEGAL_STATE` for one that records already, the sticky error.
    pub(crate) fn begin_capture(&self, current: Handle, stream: Handle) -> Answer {
        let mut state = self.state();
        let place = state.place(current, stream)?;
        if let Some(code) = state.device(place.device)?.poison {
            return Err(code);
        }
        if stream <= 2 {
            return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
        }
        if place.graph.is_some() {
            return Err(Code::ILLEGAL_STATE);
        }
        let graph =
            Graph { device: place.device, nodes: Vec::new(), spoiled: false, origin: Some(stream), instance: None };
        let graph = state.graphs.insert(graph);
        state.streams.get_mut(stream)?.graph = Some(graph);
        Ok(())
    }

    /// Ends a recording; gives the graph.
    ///
    /// # Errors
    /// `ILLEGAL_STATE` for a stream that does not record, `STREAM_CAPTURE_UNMATCHED` for one that did not begin the
    /// recording, `STREAM_CAPTURE_INVALIDATED` (901) after something that a graph cannot hold.
    pub(crate) fn end_capture(&self, stream: Handle) -> Answer<Handle> {
        let mut state = self.state();
        let graph = state.streams.get(stream)?.graph.ok_or(Code::ILLEGAL_STATE)?;
        if state.graphs.get(graph)?.origin != Some(stream) {
            return Err(Code::STREAM_CAPTURE_UNMATCHED);
        }
        for stream in state.streams.values_mut().filter(|stream| stream.graph == Some(graph)) {
            stream.graph = None;
        }
        for event in state.events.values_mut().filter(|event| event.graph == Some(graph)) {
            event.graph = None;
        }
        let made = state.graphs.get_mut(graph)?;
        made.origin = None;
        if made.spoiled {
            state.graphs.remove(graph)?;
            return Err(Code(901));
        }
        Ok(graph)
    }

    /// Whether a stream records: 0 no, 1 yes, 2 yes but spoiled.
    ///
    /// # Errors
    /// `INVALID_HANDLE`, `INVALID_CONTEXT`.
    pub(crate) fn capture_status(&self, current: Handle, stream: Handle) -> Answer<u32> {
        let state = self.state();
        let Some(graph) = state.place(current, stream)?.graph else { return Ok(0) };
        Ok(if state.graphs.get(graph)?.spoiled { 2 } else { 1 })
    }

    /// Makes a copy of a graph that can run.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub(crate) fn instantiate(&self, graph: Handle) -> Answer<Handle> {
        let mut state = self.state();
        let mut instance = state.graphs.get(graph)?.clone();
        instance.instance = Some(0);
        Ok(state.graphs.insert(instance))
    }

    /// Runs an instantiated graph in a stream.
    ///
    /// # Errors
    /// `INVALID_VALUE` for a second run of a graph that allocates and does not free, as on a GPU; what its work answers.
    pub(crate) fn launch_graph(&self, current: Handle, instance: Handle, stream: Handle) -> Answer {
        let (device, nodes) = {
            let mut state = self.state();
            let place = state.place(current, stream)?;
            self.gate(&mut state, place.device, Operation::GraphLaunch)?;
            let graph = state.graphs.get_mut(instance)?;
            let runs = graph.instance.as_mut().ok_or(Code::INVALID_HANDLE)?;
            if graph.device != place.device {
                return Err(Code::INVALID_HANDLE);
            }
            *runs += 1;
            let count = |wanted: u32| graph.nodes.iter().filter(|node| node.node_type() == wanted).count();
            if *runs > 1 && count(10) > count(11) {
                return Err(Code::INVALID_VALUE);
            }
            let nodes = graph.nodes.clone();
            if let Some(recording) = place.graph {
                state.graphs.get_mut(recording)?.nodes.extend(nodes);
                return Ok(());
            }
            let launches = nodes.iter().filter(|node| matches!(node, Work::Launch(_))).count();
            state.device_mut(place.device)?.counts.launches += launches as u64;
            (place.device, nodes)
        };
        for node in &nodes {
            if self.state().device(device)?.poison.is_some() {
                break; // the rest of a graph does not run after a fault, and the next call says so
            }
            self.perform(device, node)?;
        }
        Ok(())
    }

    /// Ends a graph or an instance of one.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub(crate) fn destroy_graph(&self, graph: Handle) -> Answer {
        self.state().graphs.remove(graph).map(drop)
    }

    /// The kinds of a graph's nodes, in order, as NVIDIA numbers them.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub(crate) fn node_types(&self, graph: Handle) -> Answer<Vec<u32>> {
        Ok(self.state().graphs.get(graph)?.nodes.iter().map(Work::node_type).collect())
    }
}
