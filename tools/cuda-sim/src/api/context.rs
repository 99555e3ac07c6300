//! `cuCtx*`, `cuDevicePrimaryCtx*`, peer access.

use super::device::ordinal;
use super::driver;
use super::machine::{current, pop_current, push_current, set_current};
use super::pointer::Out;
use crate::driver::{Answer, Code, Handle, PRIORITIES, Sim};

/// The GPU of the calling thread's context.
fn here(sim: &Sim) -> Answer<usize> {
    sim.state().device_of(current())
}

/// A context that is still there, or 0 for none.
fn known(sim: &Sim, context: Handle) -> Answer<Handle> {
    if context != 0 {
        sim.state().device_of(context)?;
    }
    Ok(context)
}

fn create(sim: &Sim, context: &Out<Handle>, flags: u32, device: i32) -> Answer {
    let made = sim.create_context(ordinal(sim, device)?, flags)?;
    push_current(made);
    context.put(made)
}

driver! {
    /// Retains the primary context of a GPU.
    fn cuDevicePrimaryCtxRetain(context: Out<Handle>, device: i32) |sim| {
        context.put(sim.retain_primary(ordinal(sim, device)?)?)
    }

    /// Gives the primary context back.
    fn cuDevicePrimaryCtxRelease_v2(device: i32) |sim| {
        sim.release_primary(ordinal(sim, device)?)
    }

    /// Ends the primary context and everything in it, a sticky error too.
    fn cuDevicePrimaryCtxReset_v2(device: i32) |sim| {
        sim.reset_primary(ordinal(sim, device)?)
    }

    /// Chooses how the primary context waits, which makes no difference here.
    fn cuDevicePrimaryCtxSetFlags_v2(device: i32, _flags: u32) |sim| {
        ordinal(sim, device).map(drop)
    }

    /// Whether the primary context exists, and its flags.
    fn cuDevicePrimaryCtxGetState(device: i32, flags: Out<u32>, active: Out<i32>) |sim| {
        let on = ordinal(sim, device)?;
        let exists = sim.state().device(on)?.primary.is_some();
        flags.put(0)?;
        active.put(i32::from(exists))
    }

    /// Makes a context and makes it current.
    fn cuCtxCreate_v2(context: Out<Handle>, flags: u32, device: i32) |sim| {
        create(sim, &context, flags, device)
    }

    /// As `cuCtxCreate_v2`; affinities (a pointer and a count) are ignored.
    fn cuCtxCreate_v3(context: Out<Handle>, _affinities: usize, _count: i32, flags: u32, device: i32) |sim| {
        create(sim, &context, flags, device)
    }

    /// As `cuCtxCreate_v2`; the parameters (a pointer) are ignored.
    fn cuCtxCreate_v4(context: Out<Handle>, _parameters: usize, flags: u32, device: i32) |sim| {
        create(sim, &context, flags, device)
    }

    /// Ends a context that is not a primary one.
    fn cuCtxDestroy_v2(context: Handle) |sim| {
        sim.destroy_context(context)?;
        if current() == context {
            set_current(0);
        }
        Ok(())
    }

    /// Makes a context the calling thread's.
    fn cuCtxSetCurrent(context: Handle) |sim| {
        set_current(known(sim, context)?);
        Ok(())
    }

    /// The calling thread's context, or null.
    fn cuCtxGetCurrent(context: Out<Handle>) |_| {
        context.put(current())
    }

    /// Makes a context the calling thread's, above the one it has.
    fn cuCtxPushCurrent_v2(context: Handle) |sim| {
        if known(sim, context)? == 0 {
            return Err(Code::INVALID_CONTEXT);
        }
        push_current(context);
        Ok(())
    }

    /// Takes the calling thread's context away and returns to the one below it.
    fn cuCtxPopCurrent_v2(context: Out<Handle>) |_| {
        context.put_if_wanted(pop_current()?);
        Ok(())
    }

    /// The GPU of the calling thread's context.
    fn cuCtxGetDevice(device: Out<i32>) |sim| {
        device.put(here(sim)? as i32)
    }

    /// The flags of the calling thread's context.
    fn cuCtxGetFlags(flags: Out<u32>) |sim| {
        let found = sim.state().contexts.get(current()).map(|context| context.flags);
        flags.put(found.map_err(|_| Code::INVALID_CONTEXT)?)
    }

    /// Chooses the flags of the calling thread's context, which make no difference here.
    fn cuCtxSetFlags(flags: u32) |sim| {
        let mut state = sim.state();
        state.contexts.get_mut(current()).map_err(|_| Code::INVALID_CONTEXT)?.flags = flags;
        Ok(())
    }

    /// The version of the interface.
    fn cuCtxGetApiVersion(_context: Handle, version: Out<u32>) |_| {
        version.put(3020)
    }

    /// Waits for everything on the GPU.
    fn cuCtxSynchronize() |sim| {
        sim.synchronise_context(current())
    }

    /// The least and the most urgent stream priority.
    fn cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) |sim| {
        here(sim)?;
        least.put_if_wanted(PRIORITIES.0);
        greatest.put_if_wanted(PRIORITIES.1);
        Ok(())
    }

    /// A limit of the context; the ones of device-side calls are not simulated.
    fn cuCtxGetLimit(value: Out<usize>, limit: u32) |sim| {
        here(sim)?;
        match limit {
            0 => value.put(1024),     // stack of a thread
            1 => value.put(1 << 20),  // buffer of printf
            2 => value.put(8 << 20),  // heap of device-side malloc
            _ => Err(Code::UNSUPPORTED_LIMIT),
        }
    }

    /// Takes a limit and leaves it as it is.
    fn cuCtxSetLimit(limit: u32, _value: usize) |sim| {
        here(sim)?;
        if limit <= 2 { Ok(()) } else { Err(Code::UNSUPPORTED_LIMIT) }
    }

    /// How the cache is divided: no preference.
    fn cuCtxGetCacheConfig(config: Out<u32>) |sim| {
        here(sim)?;
        config.put(0)
    }

    /// Takes a preference for the cache, which makes no difference here.
    fn cuCtxSetCacheConfig(_config: u32) |sim| {
        here(sim).map(drop)
    }

    /// Lets the current context's GPU reach the memory of another context's.
    fn cuCtxEnablePeerAccess(peer: Handle, flags: u32) |sim| {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let other = sim.state().device_of(peer)?;
        sim.enable_peer(here(sim)?, other)
    }

    /// Ends what `cuCtxEnablePeerAccess` began.
    fn cuCtxDisablePeerAccess(peer: Handle) |sim| {
        let other = sim.state().device_of(peer)?;
        sim.disable_peer(here(sim)?, other)
    }
}
