"""What users do with a sparse tensor and its factors without a thought of devices.

Each script is code for TensorLy alone; it leaves numbers in `result`. `x` is a `sparse.COO`.
"""

HEAD = """
import numpy as np, sparse, tensorly as tl
from tensorly.decomposition import CP, CP_NN_HALS, Tucker, non_negative_parafac, parafac, tucker

x = sparse.random((12, 10, 8), density=0.2, random_state=0)
"""

SCRIPTS = {
    "numpy": """
weights, factors = parafac(x, 3, init="random", random_state=0)
stacked = np.concatenate([np.asarray(factor) for factor in factors])
order = np.argsort(factors[0][:, 0])
result = [np.linalg.norm(stacked), stacked.sum(), factors[0][order[0], 0]]
""",
    "scipy": """
import scipy.linalg, scipy.spatial.distance
transformed = CP(3, init="random", random_state=0).fit_transform(x)
factor = transformed.factors[1]
distances = scipy.spatial.distance.pdist(factor)
result = [scipy.linalg.norm(factor), *scipy.linalg.svdvals(factor), distances.max()]
""",
    "sklearn": """
from sklearn.cluster import KMeans
from sklearn.preprocessing import StandardScaler
cp = parafac(x, 3, init="random", random_state=0)
scaled = StandardScaler().fit_transform(cp.factors[0])
result = [KMeans(2, n_init=1, random_state=0).fit(scaled).inertia_]
""",
    "pandas": """
import pandas
cp, errors = parafac(x, 3, init="random", random_state=0, return_errors=True)
frame = pandas.DataFrame(cp.factors[2], columns=list("abc"))
result = [*frame.describe().loc["std"], *pandas.Series(errors).diff().dropna()]
""",
    "matplotlib": """
import matplotlib
matplotlib.use("agg")
import matplotlib.pyplot as plt
core, factors = tucker(x, [3, 2, 2], init="random", random_state=0)
figure, (left, right) = plt.subplots(1, 2)
line, = left.plot(factors[0][:, 0])
right.imshow(core[:, :, 0])
result = [*line.get_ydata(), *right.images[0].get_array().ravel()]
plt.close(figure)
""",
    "files": """
import os, pickle, tempfile
cp = non_negative_parafac(abs(x), 3, init="random", random_state=0)
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "model.npz")
    np.savez(path, weights=cp.weights, *cp.factors)
    loaded = np.load(path)
    again = pickle.loads(pickle.dumps(cp))
    result = [loaded["arr_0"].sum(), loaded["weights"].sum(), again.factors[1].sum()]
""",
    "a guess": """
init = tl.random.random_cp(x.shape, 3, random_state=0)
first = parafac(x, 3, init=init, n_iter_max=5)
more = parafac(x, 3, init=first, n_iter_max=5)
own = [np.random.default_rng(0).random((size, 3)) for size in x.shape]
result = [more.factors[0].sum(), parafac(x, 3, init=(None, own), n_iter_max=5).factors[0].sum()]
""",
    "dense": """
dense = x.todense()
cp = parafac(x, 3, init="random", random_state=0)
rest = tl.cp_to_tensor(cp) - dense
result = [tl.norm(rest), np.linalg.norm(rest), tl.norm(x), float(tl.sum(x)), tl.mean(x)]
""",
    "a callback": """
seen = []
def look(cp, error):
    weights, factors = cp
    seen.append([float(error), np.linalg.norm(factors[0]), np.max(weights)])
    return len(seen) == 4
parafac(x, 3, init="random", random_state=0, callback=look, tol=1e-12)
result = np.ravel(seen)
""",
    "classes": """
model = CP_NN_HALS(3, init="random", random_state=0)
cp = model.fit_transform(abs(x))
core, factors = Tucker([3, 2, 2], init="random", random_state=0).fit_transform(x)
result = [model.decomposition_.factors[0].sum(), *np.ravel(core), np.std(factors[1])]
""",
    "own loop": """
rng = np.random.default_rng(0)
factors = [rng.random((size, 3)) for size in x.shape]
for _ in range(5):
    for mode in range(3):
        gram = np.ones((3, 3))
        for n, factor in enumerate(factors):
            gram *= 1 if n == mode else factor.T @ factor
        mttkrp = tl.tenalg.unfolding_dot_khatri_rao(x, (None, factors), mode)
        factors[mode] = np.linalg.solve(gram.T, mttkrp.T).T
small = tl.tenalg.multi_mode_dot(x, [factor.T for factor in factors])
vector = tl.tenalg.mode_dot(tl.tenalg.mode_dot(x, factors[0][:, 0], 0), factors[1][:, 0], 0)
result = [*np.ravel(small), *vector, np.vdot(vector, vector), tl.tenalg.inner(x, x)]
""",
    "masks": """
mask = np.random.default_rng(0).random(x.shape) > 0.1
cp = parafac(x, 2, init="random", random_state=0, mask=mask, n_iter_max=10)
result = [np.abs(cp.factors[0]).sum()]
""",
}
