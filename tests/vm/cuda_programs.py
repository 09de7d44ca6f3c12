# SPDX-License-Identifier: GPL-2.0-or-later
"""
Programs of this machine as a read-only disk for guests: ffmpeg, and one that GCC compiled for GPUs of NVIDIA, with the libraries
that they load. In the guest they run with these, and with the guest's libcuda.so.1.
"""
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

FFMPEG = shutil.which("ffmpeg")
OPENMP = os.environ.get("KAGE_CUDA_OPENMP")  # "": this machine's GCC has no offloading
# The GPU's driver: the PTX device, or with a bundle (bench/gpus/run) the machine's; the programs' libraries come with it then.
DRIVER = os.environ.get("KAGE_CUDA_DRIVER") or "ptx"
NATIVE = os.environ["KAGE_PTX_CUDA"] if DRIVER == "ptx" else DRIVER
LIBRARIES = os.environ.get("KAGE_PROGRAMS_LIBRARIES", "")
MOUNTED = "/tmp/programs"
LOADER = "ld-linux-x86-64.so.2"


def with_libraries(*folders):
    """An environment in which the programs find theirs."""
    path = ":".join(filter(None, [*folders, LIBRARIES]))
    return dict(os.environ, **({"LD_LIBRARY_PATH": path} if path else {}))


def libraries_of(program):
    """What it loads when it starts, as {name: path}. The loader stands there without a name."""
    found = {}
    listed = subprocess.run(["ldd", program], stdout=subprocess.PIPE, text=True, check=True, env=with_libraries())
    for line in listed.stdout.splitlines():
        words = line.split()
        if len(words) >= 3 and words[1] == "=>" and words[2].startswith("/"):
            found[words[0]] = words[2]
        elif words and words[0].startswith("/"):
            found[Path(words[0]).name] = words[0]
    return found


def offload_plugin():
    """libgomp opens it when a program begins to use a device."""
    if LIBRARIES:
        return f"{LIBRARIES}/libgomp-plugin-nvptx.so.1"
    path = subprocess.run(["gcc", "-print-file-name=libgomp-plugin-nvptx.so.1"], stdout=subprocess.PIPE, text=True,
                          check=True).stdout.strip()
    if "/" in path:
        return path
    return next(str(one) for one in Path("/usr/lib").rglob("libgomp-plugin-nvptx.so.1"))


def bring(path, to):
    """The file itself, once: mksquashfs keeps links. As a hard link where the file system allows it."""
    if to.exists():
        return
    try:
        os.link(os.path.realpath(path), to)
    except OSError:
        shutil.copyfile(path, to)
        to.chmod(0o755)


def make_disk(directory):
    """A squashfs of them; nothing is compressed, because the guest would unpack it under emulation."""
    tree, image = Path(directory) / "tree", Path(directory) / "programs.squashfs"
    (tree / "bin").mkdir(parents=True)
    (tree / "lib").mkdir()
    for program in [FFMPEG, *([OPENMP, offload_plugin()] if OPENMP else [])]:
        for name, path in libraries_of(program).items():
            bring(path, tree / "lib" / name)
        bring(program, tree / ("lib" if ".so" in Path(program).name else "bin") / Path(program).name)
    subprocess.run(["mksquashfs", tree, image, "-noI", "-noD", "-noF", "-noX", "-no-progress", "-quiet"], check=True,
                   stdout=subprocess.DEVNULL)
    shutil.rmtree(tree)
    return image


def with_disk(image):
    """Words for the control tool: a guest has the disk as its third one."""
    return ("--qemu-option=-drive", f"--qemu-option=if=none,id=programs,file={image},format=raw,readonly=on",
            "--qemu-option=-device", "--qemu-option=virtio-blk-pci,drive=programs")


MOUNT = f"mkdir -p {MOUNTED} && mount -t squashfs -o ro /dev/vdc {MOUNTED}"


def in_guest(program):
    """The command that starts it in the guest."""
    return (f"{MOUNTED}/lib/{LOADER} --library-path {MOUNTED}/lib:/usr/lib/x86_64-linux-gnu "
            f"{MOUNTED}/bin/{Path(program).name}")


def filtered(frames=None):
    """ffmpeg's arguments: a test picture through a filter on the GPU, a checksum of each frame. The processor's part is the same
    on each processor."""
    return ["-hide_banner", "-nostdin", "-loglevel", "error", "-cpuflags", "0", "-init_hw_device", "cuda=gpu:0",
            "-filter_hw_device", "gpu", "-f", "lavfi", "-i", "testsrc=size=64x48:rate=25",
            "-vf", "format=yuv420p,hwupload_cuda,scale_cuda=40:30,hwdownload,format=yuv420p",
            *(["-frames:v", str(frames)] if frames else []), "-f", "framemd5", "-flush_packets", "1"]


def sums(text):
    """The frames' checksums in order; a last line that is not whole is left out."""
    return [line.rsplit(",", 1)[1].strip() for line in text[:text.rfind("\n") + 1].splitlines()
            if line and not line.startswith("#")]


def native_sums(frames):
    """On this machine, without a guest."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "libcuda.so.1").symlink_to(NATIVE)
        done = subprocess.run([FFMPEG, *filtered(frames), "-"], stdout=subprocess.PIPE, text=True, check=True,
                              env=with_libraries(folder))
    return sums(done.stdout)
