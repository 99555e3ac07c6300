//! Contexts: the primary context of each GPU, further contexts, and the objects that end with them.

use serde_json::json;

use super::code::{Answer, Code};
use super::handles::Handle;
use super::objects::Context;
use super::sim::{Sim, State};
use super::space::Owner;

impl Sim {
    /// Retains the primary context of a GPU, making it where needed.
    ///
    /// # Errors
    /// `INVALID_DEVICE`; the sticky error of a GPU.
    pub(crate) fn retain_primary(&self, device: usize) -> Answer<Handle> {
        let mut state = self.state();
        if let Some(code) = state.device(device)?.poison {
            return Err(code);
        }
        let context = match state.device(device)?.primary {
            Some(context) => context,
            None => state.contexts.insert(Context { device, flags: 0 }),
        };
        let on = state.device_mut(device)?;
        on.primary = Some(context);
        on.retained += 1;
        Ok(context)
    }

    /// Gives a primary context back; the last one takes everything on the GPU with it.
    ///
    /// # Errors
    /// `INVALID_DEVICE`; `INVALID_CONTEXT` when it is not retained.
    pub(crate) fn release_primary(&self, device: usize) -> Answer {
        let mut state = self.state();
        let on = state.device_mut(device)?;
        on.retained = on.retained.checked_sub(1).ok_or(Code::INVALID_CONTEXT)?;
        if on.retained == 0 {
            self.end(&mut state, device);
        }
        Ok(())
    }

    /// Ends the primary context, also while the program retains it. This ends a sticky error too.
    ///
    /// # Errors
    /// `INVALID_DEVICE`.
    pub(crate) fn reset_primary(&self, device: usize) -> Answer {
        let mut state = self.state();
        state.device_mut(device)?.retained = 0;
        self.end(&mut state, device);
        Ok(())
    }

    /// Makes a context beside the primary one.
    ///
    /// # Errors
    /// As [`Sim::retain_primary`].
    pub(crate) fn create_context(&self, device: usize, flags: u32) -> Answer<Handle> {
        let mut state = self.state();
        match state.device(device)?.poison {
            Some(code) => Err(code),
            None => Ok(state.contexts.insert(Context { device, flags })),
        }
    }

    /// Ends a context made by [`Sim::create_context`]; memory it made stays with the GPU until that is reset.
    ///
    /// # Errors
    /// `INVALID_CONTEXT` for one that is gone, or a primary one.
    pub(crate) fn destroy_context(&self, context: Handle) -> Answer {
        let mut state = self.state();
        if state.devices.iter().any(|device| device.primary == Some(context)) {
            return Err(Code::INVALID_CONTEXT);
        }
        state.contexts.remove(context).map(drop).map_err(|_| Code::INVALID_CONTEXT)
    }

    /// Lets `device` reach the memory of `peer`.
    ///
    /// # Errors
    /// `INVALID_DEVICE` for the same GPU, `PEER_ACCESS_ALREADY_ENABLED`.
    pub(crate) fn enable_peer(&self, device: usize, peer: usize) -> Answer {
        let mut state = self.state();
        state.device(peer)?;
        if device == peer {
            return Err(Code::INVALID_DEVICE);
        }
        let peers = &mut state.device_mut(device)?.peers;
        if peers.contains(&peer) {
            return Err(Code::PEER_ACCESS_ALREADY_ENABLED);
        }
        peers.push(peer);
        state.space.forget_views();
        Ok(())
    }

    /// Ends what [`Sim::enable_peer`] began.
    ///
    /// # Errors
    /// `PEER_ACCESS_NOT_ENABLED`.
    pub(crate) fn disable_peer(&self, device: usize, peer: usize) -> Answer {
        let mut state = self.state();
        let peers = &mut state.device_mut(device)?.peers;
        let at = peers.iter().position(|known| *known == peer).ok_or(Code::PEER_ACCESS_NOT_ENABLED)?;
        peers.swap_remove(at);
        state.space.forget_views();
        Ok(())
    }

    /// Frees everything on a GPU and forgets its sticky error.
    fn end(&self, state: &mut State, device: usize) {
        let lost = state.space.remove_all(|allocation| {
            matches!(allocation.owner, Owner::Device(owner) | Owner::Variable(owner) | Owner::Managed(owner) if owner == device)
        });
        let lost: Vec<_> = lost.iter().filter(|allocation| !matches!(allocation.owner, Owner::Variable(_))).collect();
        let bytes: u64 = lost.iter().map(|allocation| allocation.bytes).sum();
        state.streams.retain(|stream| stream.device != device);
        state.events.retain(|event| event.device != device);
        state.functions.retain(|function| function.device != device);
        state.modules.retain(|module| module.device != device);
        state.contexts.retain(|context| context.device != device);
        if let Some(on) = state.devices.get_mut(device) {
            lost.iter().for_each(|allocation| on.ledger.release(allocation.bytes, allocation.charge));
            on.poison = None;
            on.primary = None;
            on.peers.clear();
        }
        self.log.write("reset", json!({ "device": device, "freed_bytes": bytes, "freed": lost.len() }));
    }
}
