"""The works that methods cite by key, short: PAPER.md has them whole."""

REFERENCES = {
    "Pasechnyuk2026": "Pasechnyuk-Vilensky, Takáč. Heterogeneous-Horizon Exact-Weight "
    "Local SGD. arXiv:2604.24463",
    "McMahan2017": "McMahan et al. Communication-Efficient Learning of Deep Networks "
    "from Decentralized Data. AISTATS 2017",
    "Li2020": "Li et al. Federated Optimization in Heterogeneous Networks. MLSys 2020",
    "Karimireddy2020": "Karimireddy et al. SCAFFOLD: Stochastic Controlled Averaging "
    "for Federated Learning. ICML 2020",
    "Wang2020": "Wang et al. Tackling the Objective Inconsistency Problem in "
    "Heterogeneous Federated Optimization. NeurIPS 2020",
    "Gorbunov2021": "Gorbunov et al. Local SGD: Unified Theory and New Efficient "
    "Methods. AISTATS 2021",
    "Hu2022": "Hu et al. Federated learning meets multi-objective optimization. "
    "arXiv:2006.11489",
    "Zeng2023": "Zeng et al. On the Power of Adaptive Weighted Aggregation in "
    "Heterogeneous Federated Learning and Beyond. arXiv:2310.02702",
    "Jhunjhunwala2023": "Jhunjhunwala et al. FedExP: speeding up federated averaging "
    "via extrapolation. arXiv:2301.09604",
    "Wu2021": "Wu, Wang. Fast-convergent federated learning with adaptive weighting. "
    "arXiv:2012.00661",
    "Li2020b": "Li et al. Fair resource allocation in federated learning. "
    "arXiv:1905.10497",
    "Woodworth2020": "Woodworth et al. Minibatch vs local SGD for heterogeneous "
    "distributed learning. NeurIPS 2020",
    "Pillutla2022": "Pillutla et al. Robust aggregation for federated learning. "
    "arXiv:1912.13445",
    "Yin2018": "Yin et al. Byzantine-robust distributed learning: towards optimal "
    "statistical rates. ICML 2018",
    "Blanchard2017": "Blanchard et al. Machine learning with adversaries: Byzantine "
    "tolerant gradient descent. NeurIPS 2017",
    "Reddi2021": "Reddi et al. Adaptive federated optimization. ICLR 2021",
    "Hsu2019": "Hsu, Qi, Brown. Measuring the effects of non-identical data "
    "distribution for federated visual classification. arXiv:1909.06335",
    "Karimireddy2022": "Karimireddy, He, Jaggi. Byzantine-robust learning on "
    "heterogeneous datasets via bucketing. ICLR 2022",
    "Xie2018": "Xie, Koyejo, Gupta. Generalized Byzantine-tolerant SGD. "
    "arXiv:1802.10116",
    "ElMhamdi2018": "El Mhamdi, Guerraoui, Rouault. The hidden vulnerability of "
    "distributed learning in Byzantium. ICML 2018",
    "ElMhamdi2020": "El Mhamdi et al. Genuinely distributed Byzantine machine "
    "learning. PODC 2020",
    "Shejwalkar2021": "Shejwalkar, Houmansadr. Manipulating the Byzantine: optimizing "
    "model poisoning attacks and defenses for federated learning. NDSS 2021",
    "Xu2022": "Xu et al. Byzantine-robust federated learning through collaborative "
    "malicious gradient filtering. arXiv:2109.05872",
    "Cao2021": "Cao et al. FLTrust: Byzantine-robust federated learning via trust "
    "bootstrapping. NDSS 2021",
    "Allouah2025": "Allouah, Guerraoui, Stephan. Towards trustworthy federated "
    "learning with untrusted participants. ICML 2025",
    "Allouah2023": "Allouah et al. Fixing by mixing: a recipe for optimal Byzantine ML "
    "under heterogeneity. AISTATS 2023",
    "Allouah2024": "Allouah et al. Adaptive gradient clipping for robust federated "
    "learning. arXiv:2405.14432",
    "Baruch2019": "Baruch, Baruch, Goldberg. A little is enough: circumventing "
    "defenses for distributed learning. NeurIPS 2019",
    "Xie2019": "Xie, Koyejo, Gupta. Fall of empires: breaking Byzantine-tolerant SGD "
    "by inner product manipulation. UAI 2020",
    "Karimireddy2021": "Karimireddy et al. Learning from history for Byzantine robust "
    "optimization. arXiv:2012.10333",
}
"""Surnames, title and where it can be found."""
