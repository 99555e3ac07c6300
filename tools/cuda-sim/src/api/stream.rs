//! Streams, events and functions of the host in a stream.

use std::ffi::c_void;

use super::driver;
use super::machine::current;
use super::pointer::Out;
use crate::driver::{Code, Handle, HostCall, Work};

driver! {
    /// Makes a stream.
    fn cuStreamCreate(stream: Out<Handle>, flags: u32) |sim| {
        stream.put(sim.create_stream(current(), flags, 0)?)
    }

    /// Makes a stream with a priority.
    fn cuStreamCreateWithPriority(stream: Out<Handle>, flags: u32, priority: i32) |sim| {
        stream.put(sim.create_stream(current(), flags, priority)?)
    }

    /// Ends a stream.
    fn cuStreamDestroy_v2(stream: Handle) |sim| {
        sim.destroy_stream(stream)
    }

    /// Waits for a stream.
    fn cuStreamSynchronize(stream: Handle) |sim| {
        sim.synchronise_stream(current(), stream)
    }

    /// Whether a stream has done everything.
    fn cuStreamQuery(stream: Handle) |sim| {
        sim.query_stream(current(), stream)
    }

    /// Lets a stream wait for an event.
    fn cuStreamWaitEvent(stream: Handle, event: Handle, _flags: u32) |sim| {
        sim.wait_event(current(), stream, event)
    }

    /// The context of a stream.
    fn cuStreamGetCtx(stream: Handle, context: Out<Handle>) |sim| {
        let found = if stream <= 2 { current() } else { sim.state().streams.get(stream)?.context };
        context.put(found)
    }

    /// The flags of a stream.
    fn cuStreamGetFlags(stream: Handle, flags: Out<u32>) |sim| {
        let found = if stream <= 2 { 0 } else { sim.state().streams.get(stream)?.flags };
        flags.put(found)
    }

    /// The priority of a stream.
    fn cuStreamGetPriority(stream: Handle, priority: Out<i32>) |sim| {
        let found = if stream <= 2 { 0 } else { sim.state().streams.get(stream)?.priority };
        priority.put(found)
    }

    /// Calls a function of the program when the stream gets there, which is at once.
    fn cuLaunchHostFunc(stream: Handle, function: Option<extern "C" fn(*mut c_void)>, data: usize) |sim| {
        let function = function.ok_or(Code::INVALID_VALUE)?;
        let place = sim.state().place(current(), stream)?;
        let work = Work::Call(HostCall { function, data });
        if let Some(code) = sim.state().device(place.device)?.poison {
            return Err(code);
        }
        match place.graph {
            Some(graph) => sim.state().graphs.get_mut(graph)?.nodes.push(work),
            None => sim.perform(place.device, &work)?,
        }
        Ok(())
    }

    /// Makes an event.
    fn cuEventCreate(event: Out<Handle>, flags: u32) |sim| {
        event.put(sim.create_event(current(), flags)?)
    }

    /// Marks where a stream is.
    fn cuEventRecord(event: Handle, stream: Handle) |sim| {
        sim.record_event(current(), event, stream)
    }

    /// As `cuEventRecord`.
    fn cuEventRecordWithFlags(event: Handle, stream: Handle, _flags: u32) |sim| {
        sim.record_event(current(), event, stream)
    }

    /// Waits for an event.
    fn cuEventSynchronize(event: Handle) |sim| {
        sim.synchronise_event(event)
    }

    /// Whether an event has happened.
    fn cuEventQuery(event: Handle) |sim| {
        sim.query_event(event)
    }

    /// Ends an event.
    fn cuEventDestroy_v2(event: Handle) |sim| {
        sim.destroy_event(event)
    }

    /// Milliseconds between two events.
    fn cuEventElapsedTime(milliseconds: Out<f32>, from: Handle, to: Handle) |sim| {
        milliseconds.put(sim.elapsed(from, to)?)
    }

    /// As `cuEventElapsedTime`.
    fn cuEventElapsedTime_v2(milliseconds: Out<f32>, from: Handle, to: Handle) |sim| {
        milliseconds.put(sim.elapsed(from, to)?)
    }

    /// Begins to collect a profile. None is collected here.
    fn cuProfilerStart() |sim| {
        sim.state().device_of(current()).map(drop)
    }

    /// Ends what `cuProfilerStart` began.
    fn cuProfilerStop() |sim| {
        sim.state().device_of(current()).map(drop)
    }
}
