"""One server for all transports: what happens between two broadcasts of the model.

state        what a run carries from round to round, and the method it runs
first        the state before the first round
conclude     sift, decide, server step: from what was heard to the next state
outer        step size, momentum and division on the aggregated step
measure      how far to go, asked of the clients
average      an average of the iterates, kept beside them
ledger       numbers sent, in both conventions
trace        the record of a round
checkpoint   stop at any instant, go on later, same bits
folder       a run on disk: trace, checkpoint, description
federation   laws of local steps and of participation
"""
