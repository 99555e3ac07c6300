//! Graphs: recording of a stream, and replay.

use super::driver;
use super::machine::current;
use super::pointer::Out;
use crate::driver::{Code, Handle};

/// The index of a node and its graph as one handle: graphs are multiples of 16 apart, but a node has its own number.
fn node_handle(graph: Handle, index: usize) -> Handle {
    graph << 20 | (index + 1)
}

driver! {
    /// Begins to record a stream.
    fn cuStreamBeginCapture_v2(stream: Handle, _mode: u32) |sim| {
        sim.begin_capture(current(), stream)
    }

    /// Ends a recording.
    fn cuStreamEndCapture(stream: Handle, graph: Out<Handle>) |sim| {
        let ended = sim.end_capture(stream);
        graph.put(*ended.as_ref().unwrap_or(&0))?;
        ended.map(drop)
    }

    /// Whether a stream records.
    fn cuStreamIsCapturing(stream: Handle, status: Out<u32>) |sim| {
        status.put(sim.capture_status(current(), stream)?)
    }

    /// Exchanges the mode in which this thread's calls disturb recordings; there is one mode, global (0).
    fn cuThreadExchangeStreamCaptureMode(mode: Out<u32>) |_| {
        mode.put(0)
    }

    /// The nodes of a graph: how many, and their handles where there is room.
    fn cuGraphGetNodes(graph: Handle, nodes: Out<Handle>, count: Out<usize>) |sim| {
        let types = sim.node_types(graph)?;
        if nodes.is_null() {
            return count.put(types.len());
        }
        let wanted = count.value()?.min(types.len());
        let handles: Vec<Handle> = (0..wanted).map(|index| node_handle(graph, index)).collect();
        nodes.put_all(&handles)?;
        count.put(wanted)
    }

    /// The kind of a node.
    fn cuGraphNodeGetType(node: Handle, kind: Out<u32>) |sim| {
        let index = (node & 0xf_ffff).checked_sub(1).ok_or(Code::INVALID_HANDLE)?;
        kind.put(*sim.node_types(node >> 20)?.get(index).ok_or(Code::INVALID_HANDLE)?)
    }

    /// Makes a graph ready to run.
    fn cuGraphInstantiateWithFlags(instance: Out<Handle>, graph: Handle, _flags: u64) |sim| {
        instance.put(sim.instantiate(graph)?)
    }

    /// Sends a graph ahead to the GPU, which has nothing to do here.
    fn cuGraphUpload(instance: Handle, stream: Handle) |sim| {
        sim.state().place(current(), stream)?;
        sim.node_types(instance).map(drop)
    }

    /// Runs a graph in a stream.
    fn cuGraphLaunch(instance: Handle, stream: Handle) |sim| {
        sim.launch_graph(current(), instance, stream)
    }

    /// Ends a graph.
    fn cuGraphDestroy(graph: Handle) |sim| {
        sim.destroy_graph(graph)
    }

    /// Ends a graph that was ready to run.
    fn cuGraphExecDestroy(instance: Handle) |sim| {
        sim.destroy_graph(instance)
    }
}
