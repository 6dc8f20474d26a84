"""One server for all transports: what happens between two broadcasts of the model.

state           entry of a comparison, its contract, its state and the initial one
finish_round    decision, line search, server step: from displacements to the next state
server_step     step size, momentum, division and averages of iterates
line_search     the clients' losses determine the length of the step
communication   numbers sent, in both conventions
trace           the record of a round
checkpoint      stop at any instant, resume later, same bits
run_log         a run on disk: trace, checkpoints, description
"""
