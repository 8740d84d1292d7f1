//! SkillFS's views: mounted, taken off, and served by the kernel from backing files. It knows nothing of what a view shows.

use crate::ceiling::Ceiling;
use crate::fuse;
use crate::hold::Holdings;
use crate::inner::{Inner, Resource};
use crate::log::{Often, log, log_often};
use crate::policy::ceiling::RootKind;
use crate::sys;
use cyberos_proto::ids::MountId;
use cyberos_proto::link::Peer;
use cyberos_proto::message::{MAX_BACKING, Refusal, Reply, step};
use nix::errno::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};

/// The views of one link.
#[derive(Default)]
pub(crate) struct Views(BTreeMap<MountId, View>);

/// A view that is mounted.
struct View {
    /// A copy of the server's end, only where the ceiling has backing files: while it is open, a mount whose server has
    /// gone hangs who looks at it. So it goes first when the link ends.
    server: Option<OwnedFd>,
    /// Numbers of its backing files.
    backing: BTreeSet<u32>,
}

impl Views {
    pub(crate) fn is_mounted(&self, mount: MountId) -> bool {
        self.0.contains_key(&mount)
    }

    /// Mounts a view; carries its server's end.
    pub(crate) fn mount(
        &mut self,
        mount: MountId,
        (ceiling, peer, notes): (&Ceiling, Peer, &Inner),
        holdings: &mut Holdings,
    ) -> Result<(Reply, Vec<OwnedFd>), Refusal> {
        let point = ceiling.mounts.get(&mount);
        let point = point.ok_or_else(|| Refusal::Ceiling(format!("there is no mount {}", mount.get())))?;
        let (server, kept) = fuse::prepare(&ceiling.text, point, peer)?;
        let copy = ceiling.has(RootKind::Backing).then(|| server.try_clone());
        let copy = step("copy the server's end", copy.transpose())?;
        // Held before it is attached: there is no moment in which nobody would take it off.
        holdings.hold(notes, Resource::Mount(mount), kept.into())?;
        let view = holdings.fd(Resource::Mount(mount)).ok_or(Refusal::Phase)?;
        let attached = step("attach the view", sys::attach(view, point.dir.as_fd()));
        attached.inspect_err(|_| self.take_off(mount, notes, holdings))?;
        self.0.insert(mount, View { server: copy, backing: BTreeSet::new() });
        log_often(Often::Coming, &format!("mounted {}", point.name.display()));
        Ok((Reply::Mounted, vec![server]))
    }

    pub(crate) fn take_off(&mut self, mount: MountId, notes: &Inner, holdings: &mut Holdings) {
        self.0.remove(&mount);
        if let Some(Err(e)) = holdings.fd(Resource::Mount(mount)).map(fuse::unmount) {
            log(&format!("mount {} cannot be taken off: {e}", mount.get()));
        }
        holdings.drop(notes, Resource::Mount(mount));
    }

    /// Has the kernel serve `file` in place of the server.
    pub(crate) fn register(
        &mut self,
        mount: MountId,
        fds: &[OwnedFd],
        ceiling: &Ceiling,
    ) -> Result<(Reply, Vec<OwnedFd>), Refusal> {
        let (view, point) = (self.0.get_mut(&mount), ceiling.mounts.get(&mount));
        let (Some(view), Some(point), [file]) = (view, point, fds) else { return Err(Refusal::Phase) };
        if view.backing.len() >= MAX_BACKING {
            return Err(Refusal::Ceiling(format!("at most {MAX_BACKING} backing files")));
        }
        ceiling.backs(file.as_fd(), !point.read_only)?;
        let server = view.server.as_ref().ok_or(Errno::EBADF);
        let id = server.and_then(|server| sys::backing_open(server.as_fd(), file.as_fd()));
        let id = step("backing file", id)?;
        view.backing.insert(id);
        Ok((Reply::Backing { id }, Vec::new()))
    }

    pub(crate) fn forget(&mut self, mount: MountId, id: u32) {
        let Some(View { server: Some(server), backing }) = self.0.get_mut(&mount) else { return };
        if backing.remove(&id) {
            let _ = sys::backing_close(server.as_fd(), id);
        }
    }
}
