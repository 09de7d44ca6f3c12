/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The results of the CUDA driver API as a list, so that names, numbers and texts have one place:
 *
 *   KVG_CUDA_RESULTS(X)   X(NAME, number, "what it means"), NAME without the prefix CUDA_ERROR_
 *
 * Numbers are those of the public reference; the sentences are ours. CUDA_SUCCESS (0) is no error and not in the list.
 */
#ifndef KVG_CUDA_RESULTS_H
#define KVG_CUDA_RESULTS_H

#define KVG_CUDA_RESULTS(X)                                                                                            \
	X(INVALID_VALUE, 1, "an argument is out of range")                                                             \
	X(OUT_OF_MEMORY, 2, "not enough memory")                                                                       \
	X(NOT_INITIALIZED, 3, "cuInit was not called")                                                                 \
	X(DEINITIALIZED, 4, "the driver is shutting down")                                                             \
	X(PROFILER_DISABLED, 5, "the profiler is not there")                                                           \
	X(STUB_LIBRARY, 34, "the library loaded is a stub")                                                            \
	X(DEVICE_UNAVAILABLE, 46, "the device is busy or not available")                                               \
	X(NO_DEVICE, 100, "there is no CUDA device")                                                                   \
	X(INVALID_DEVICE, 101, "no device has this number")                                                            \
	X(DEVICE_NOT_LICENSED, 102, "the device is not licensed")                                                      \
	X(INVALID_IMAGE, 200, "the image of a module is not valid")                                                    \
	X(INVALID_CONTEXT, 201, "no context is current, or it is not valid")                                           \
	X(MAP_FAILED, 205, "mapping failed")                                                                           \
	X(UNMAP_FAILED, 206, "unmapping failed")                                                                       \
	X(ARRAY_IS_MAPPED, 207, "the array is mapped")                                                                 \
	X(ALREADY_MAPPED, 208, "this is mapped already")                                                               \
	X(NO_BINARY_FOR_GPU, 209, "the image has no code for this device")                                             \
	X(ALREADY_ACQUIRED, 210, "this was acquired already")                                                          \
	X(NOT_MAPPED, 211, "this is not mapped")                                                                       \
	X(NOT_MAPPED_AS_ARRAY, 212, "this is not mapped as an array")                                                  \
	X(NOT_MAPPED_AS_POINTER, 213, "this is not mapped as a pointer")                                               \
	X(ECC_UNCORRECTABLE, 214, "memory had an error that could not be corrected")                                   \
	X(UNSUPPORTED_LIMIT, 215, "the device does not have this limit")                                               \
	X(CONTEXT_ALREADY_IN_USE, 216, "another thread uses the context")                                              \
	X(PEER_ACCESS_UNSUPPORTED, 217, "the devices cannot access each other")                                        \
	X(INVALID_PTX, 218, "the PTX could not be compiled")                                                           \
	X(INVALID_GRAPHICS_CONTEXT, 219, "the graphics context is not valid")                                          \
	X(NVLINK_UNCORRECTABLE, 220, "a link between devices had an error that could not be corrected")                \
	X(JIT_COMPILER_NOT_FOUND, 221, "the compiler for PTX is not there")                                            \
	X(UNSUPPORTED_PTX_VERSION, 222, "the PTX is of a version that is newer than the compiler")                     \
	X(JIT_COMPILATION_DISABLED, 223, "compiling PTX was switched off")                                             \
	X(UNSUPPORTED_EXEC_AFFINITY, 224, "the device does not have this affinity")                                    \
	X(UNSUPPORTED_DEVSIDE_SYNC, 225, "the code synchronises on the device, which is not supported")                \
	X(INVALID_SOURCE, 300, "the source is not valid")                                                              \
	X(FILE_NOT_FOUND, 301, "the file was not found")                                                               \
	X(SHARED_OBJECT_SYMBOL_NOT_FOUND, 302, "a shared object lacks a symbol")                                       \
	X(SHARED_OBJECT_INIT_FAILED, 303, "a shared object could not be initialised")                                  \
	X(OPERATING_SYSTEM, 304, "the operating system refused")                                                       \
	X(INVALID_HANDLE, 400, "a handle is not valid")                                                                \
	X(ILLEGAL_STATE, 401, "the state does not permit this")                                                        \
	X(NOT_FOUND, 500, "a name was not found")                                                                      \
	X(NOT_READY, 600, "what was asked about has not completed")                                                    \
	X(ILLEGAL_ADDRESS, 700, "a kernel accessed an address that is not mapped")                                     \
	X(LAUNCH_OUT_OF_RESOURCES, 701, "a launch needs more registers or threads than there are")                     \
	X(LAUNCH_TIMEOUT, 702, "a kernel ran for too long")                                                            \
	X(LAUNCH_INCOMPATIBLE_TEXTURING, 703, "a launch uses textures in an incompatible mode")                        \
	X(PEER_ACCESS_ALREADY_ENABLED, 704, "the devices can access each other already")                               \
	X(PEER_ACCESS_NOT_ENABLED, 705, "access to the other device was not enabled")                                  \
	X(PRIMARY_CONTEXT_ACTIVE, 708, "the primary context is active")                                                \
	X(CONTEXT_IS_DESTROYED, 709, "the context was destroyed")                                                      \
	X(ASSERT, 710, "an assertion failed in a kernel")                                                              \
	X(TOO_MANY_PEERS, 711, "no resources are left for access to another device")                                   \
	X(HOST_MEMORY_ALREADY_REGISTERED, 712, "the memory was registered already")                                    \
	X(HOST_MEMORY_NOT_REGISTERED, 713, "the memory was not registered")                                            \
	X(HARDWARE_STACK_ERROR, 714, "a kernel's stack was corrupted or too small")                                    \
	X(ILLEGAL_INSTRUCTION, 715, "a kernel executed an illegal instruction")                                        \
	X(MISALIGNED_ADDRESS, 716, "a kernel accessed an address that is not aligned")                                 \
	X(INVALID_ADDRESS_SPACE, 717, "a kernel used an address in a space where it cannot be")                        \
	X(INVALID_PC, 718, "a kernel jumped out of its code")                                                          \
	X(LAUNCH_FAILED, 719, "a kernel failed")                                                                       \
	X(COOPERATIVE_LAUNCH_TOO_LARGE, 720, "a cooperative launch has more blocks than can run together")             \
	X(NOT_PERMITTED, 800, "this is not permitted")                                                                 \
	X(NOT_SUPPORTED, 801, "this is not supported")                                                                 \
	X(SYSTEM_NOT_READY, 802, "the system is not ready for CUDA")                                                   \
	X(SYSTEM_DRIVER_MISMATCH, 803, "kernel driver and library are of different versions")                          \
	X(COMPAT_NOT_SUPPORTED_ON_DEVICE, 804, "the device does not support forward compatibility")                    \
	X(MPS_CONNECTION_FAILED, 805, "the process service could not be reached")                                      \
	X(MPS_RPC_FAILURE, 806, "the process service failed")                                                          \
	X(MPS_SERVER_NOT_READY, 807, "the process service is not ready")                                               \
	X(MPS_MAX_CLIENTS_REACHED, 808, "the process service has no room for another client")                          \
	X(MPS_MAX_CONNECTIONS_REACHED, 809, "the process service has no room for another connection")                  \
	X(STREAM_CAPTURE_UNSUPPORTED, 900, "a stream that captures does not permit this")                              \
	X(STREAM_CAPTURE_INVALIDATED, 901, "the capture was invalidated by an earlier error")                          \
	X(STREAM_CAPTURE_MERGE, 902, "two captures would be merged")                                                   \
	X(STREAM_CAPTURE_UNMATCHED, 903, "the capture did not begin in this stream")                                   \
	X(STREAM_CAPTURE_UNJOINED, 904, "the capture has work that was not joined to its first stream")                \
	X(STREAM_CAPTURE_ISOLATION, 905, "a capture would depend on work outside itself")                              \
	X(STREAM_CAPTURE_IMPLICIT, 906, "a capture would depend on the legacy stream")                                 \
	X(CAPTURED_EVENT, 907, "the event belongs to a capture")                                                       \
	X(STREAM_CAPTURE_WRONG_THREAD, 908, "the capture belongs to another thread")                                   \
	X(TIMEOUT, 909, "waiting took too long")                                                                       \
	X(GRAPH_EXEC_UPDATE_FAILURE, 910, "the graph cannot be updated in this way")                                   \
	X(EXTERNAL_DEVICE, 911, "a device outside of CUDA failed")                                                     \
	X(INVALID_CLUSTER_SIZE, 912, "the size of a cluster is not valid")                                             \
	X(UNKNOWN, 999, "an unknown error")

#endif
